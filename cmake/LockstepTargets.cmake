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
endfunction()

# Reuses the precompiled header, and compiles the sources three at a time: opening it costs each compilation 3 s, more
# than most sources do. LibTorch's headers on the path mean its fmt too, whose compiled part is linked.
function(lockstep_use_pch target)
  target_precompile_headers(${target} REUSE_FROM lockstep_torch_pch)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 3)
  target_link_libraries(${target} PRIVATE lockstep_torch_fmt)
endfunction()

# lockstep_sources_without_torch(<file> ...): sources of a PCH target that see no LibTorch: they compile by themselves
# and faster without the precompiled header, and a program that uses only them does not load LibTorch.
function(lockstep_sources_without_torch)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# lockstep_library(<name> [PCH] SOURCES ... [LIBS ...])  ->  static library lockstep_<name>, exported as
# Lockstep::<name>. PCH: its sources see LibTorch's headers.
function(lockstep_library name)
  cmake_parse_arguments(arg "PCH" "" "SOURCES;LIBS;PRIVATE_LIBS" ${ARGN})
  add_library(lockstep_${name} STATIC ${arg_SOURCES})
  add_library(Lockstep::${name} ALIAS lockstep_${name})
  set_target_properties(lockstep_${name} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(lockstep_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(lockstep_${name} PUBLIC ${arg_LIBS} PRIVATE ${arg_PRIVATE_LIBS})
  lockstep_compile_options(lockstep_${name})
  if(arg_PCH)
    lockstep_use_pch(lockstep_${name})
  endif()
  install(TARGETS lockstep_${name} EXPORT LockstepTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

# lockstep_program(<name> [PCH] SOURCES ... [LIBS ...])  ->  build/bin/<name>, installed.
function(lockstep_program name)
  cmake_parse_arguments(arg "PCH" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBS})
  lockstep_compile_options(${name})
  if(arg_PCH)
    lockstep_use_pch(${name})
  endif()
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()
