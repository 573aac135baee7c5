include(CMakePackageConfigHelpers)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN pch EXCLUDE)
get_property(LOCKSTEP_DEPENDENCIES GLOBAL PROPERTY LOCKSTEP_DEPENDENCIES)
list(REMOVE_DUPLICATES LOCKSTEP_DEPENDENCIES)
get_filename_component(LOCKSTEP_TORCH_ROOT ${Torch_DIR}/../../.. ABSOLUTE)
install(EXPORT LockstepTargets NAMESPACE Lockstep:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/LockstepConfig.cmake.in
  ${PROJECT_BINARY_DIR}/LockstepConfig.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/LockstepConfig.cmake ${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
        cmake/LockstepTorch.cmake cmake/LockstepArrow.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
