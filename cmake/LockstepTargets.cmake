# One function for each kind of target, so that every room is built with the same flags.

# lockstep_find_package(<name> ...): find_package(... REQUIRED) for something that a library of ours links; the
# installed package finds it again. What only our programs and tests use needs plain find_package.
macro(lockstep_find_package name)
  find_package(${name} ${ARGN} REQUIRED GLOBAL)
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_DEPENDENCIES ${name})
endmacro()

function(lockstep_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wnon-virtual-dtor -Woverloaded-virtual)
  if(LOCKSTEP_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  target_compile_definitions(${target} PRIVATE FMT_HEADER_ONLY)
endfunction()

# lockstep_library(<name> [PCH core|nn] SOURCES ... [LIBS ...])  ->  static library lockstep_<name>, exported as
# Lockstep::<name>. PCH core: c10d and autograd; nn: those and torch::nn (docs/development.md).
function(lockstep_library name)
  cmake_parse_arguments(arg "" "PCH" "SOURCES;LIBS;PRIVATE_LIBS" ${ARGN})
  add_library(lockstep_${name} STATIC ${arg_SOURCES})
  add_library(Lockstep::${name} ALIAS lockstep_${name})
  set_target_properties(lockstep_${name} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(lockstep_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(lockstep_${name} PUBLIC ${arg_LIBS} PRIVATE ${arg_PRIVATE_LIBS})
  lockstep_compile_options(lockstep_${name})
  if(arg_PCH)
    target_precompile_headers(lockstep_${name} REUSE_FROM lockstep_pch_${arg_PCH})
  endif()
  install(TARGETS lockstep_${name} EXPORT LockstepTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

# lockstep_program(<name> [PCH core|nn] SOURCES ... [LIBS ...])  ->  build/bin/<name>, installed.
function(lockstep_program name)
  cmake_parse_arguments(arg "" "PCH" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBS})
  lockstep_compile_options(${name})
  if(arg_PCH)
    target_precompile_headers(${name} REUSE_FROM lockstep_pch_${arg_PCH})
  endif()
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()
