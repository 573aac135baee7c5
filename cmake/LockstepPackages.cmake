# Debian packages, one per component: `cpack -G DEB` in a build directory makes lockstep-tools, liblockstep-dev and
# lockstep-zoo. LockstepDebian.cmake finds out then which packages these depend on.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_VENDOR "The Lockstep authors")
set(CPACK_PACKAGE_CONTACT "The Lockstep authors <lockstep@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Distributed data-parallel training on LibTorch")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/dist)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL tools dev)
if(LOCKSTEP_ZOO)
  list(APPEND CPACK_COMPONENTS_ALL zoo)
endif()
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME lockstep-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SUGGESTS "elfutils, openmpi-bin, python3, python3-venv")
set(
  CPACK_COMPONENT_TOOLS_DESCRIPTION
  "lockrun starts and watches the ranks of a job; lockstep measures, inspects and prepares.
Programs that need LibTorch take it from a Python environment
and say what to install: pip install torch==${lockstep_torch_series}.*"
)
set(CPACK_DEBIAN_DEV_PACKAGE_NAME liblockstep-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_RECOMMENDS lockstep-tools)
set(
  CPACK_COMPONENT_DEV_DESCRIPTION
  "Headers, static libraries and the CMake package of Lockstep.
LibTorch comes from a Python environment or from CMAKE_PREFIX_PATH."
)
set(CPACK_DEBIAN_ZOO_PACKAGE_NAME lockstep-zoo)
set(CPACK_DEBIAN_ZOO_PACKAGE_SECTION libdevel)
set(
  CPACK_COMPONENT_ZOO_DESCRIPTION
  "Recipes that train BERT, ResNet and translation with Lockstep, and their models, tokenizers and readers
as a library. LibTorch and Arrow come from a Python environment or from CMAKE_PREFIX_PATH."
)
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/LockstepDebian.cmake)
# For LockstepDebian.cmake.
set(CPACK_LOCKSTEP_PROGRAMS ${PROJECT_BINARY_DIR}/bin)
include(CPack)
