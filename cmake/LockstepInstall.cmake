include(CMakePackageConfigHelpers)

# Installs the headers that a user includes by lockstep/lockstep.h, and what they include.
install(
  CODE
    "set(source \"${PROJECT_SOURCE_DIR}\")
set(includes \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}\")
set(root lockstep/lockstep.h)
set(other)"
  COMPONENT dev
)
install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/InstallHeaders.cmake COMPONENT dev)
if(LOCKSTEP_ZOO)
  install(
    CODE
      "set(source \"${PROJECT_SOURCE_DIR}\")
set(includes \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}\")
set(root lockstep/zoo.h lockstep/zoo/tasks/flag_errors.h)
set(other lockstep/lockstep.h)"
    COMPONENT zoo
  )
  install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/InstallHeaders.cmake COMPONENT zoo)
endif()

# Where LibTorch and Arrow lie, unless that is in this checkout, which an installed Lockstep does not need.
set(LOCKSTEP_PLACES)
function(lockstep_is_elsewhere directory result)
  cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${directory}" NORMALIZE inside)
  set(${result} ON PARENT_SCOPE)
  if(inside OR NOT directory)
    set(${result} OFF PARENT_SCOPE)
  endif()
endfunction()
lockstep_is_elsewhere("${lockstep_torch_root}" elsewhere)
if(elsewhere)
  string(APPEND LOCKSTEP_PLACES "list(APPEND CMAKE_PREFIX_PATH \"${lockstep_torch_root}\")\n")
endif()
lockstep_is_elsewhere("${LOCKSTEP_ARROW_DIR}" elsewhere)
if(elsewhere)
  string(APPEND LOCKSTEP_PLACES "if(NOT LOCKSTEP_ARROW_DIR)\n  set(LOCKSTEP_ARROW_DIR \"${LOCKSTEP_ARROW_DIR}\")\nendif()\n")
endif()

set(LOCKSTEP_TORCH_SERIES ${lockstep_torch_series})
set(LOCKSTEP_OLDEST_TORCH ${LOCKSTEP_TORCH_VERSION})
get_property(LOCKSTEP_ARROW_VERSION GLOBAL PROPERTY LOCKSTEP_ARROW_VERSION)
get_property(lockstep_modules GLOBAL PROPERTY LOCKSTEP_MODULES)
set(LOCKSTEP_MODULE_TABLE "set(lockstep_modules ${lockstep_modules})\n")
foreach(module IN LISTS lockstep_modules)
  foreach(what links packages)
    string(TOUPPER LOCKSTEP_${what}_ property)
    get_property(list GLOBAL PROPERTY ${property}${module})
    list(REMOVE_DUPLICATES list)
    string(APPEND LOCKSTEP_MODULE_TABLE "set(lockstep_${what}_of_${module} ${list})\n")
  endforeach()
endforeach()
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/LockstepConfig.cmake.in
  ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
  INSTALL_DESTINATION ${lockstep_config_dir}
)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(
  FILES
    ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
    ${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
    cmake/LockstepTorch.cmake
    cmake/LockstepArrow.cmake
    cmake/LockstepWheel.cmake
    cmake/LockstepPrecompile.cmake
  DESTINATION ${lockstep_config_dir}
  COMPONENT dev
)
include(LockstepPackages)
