# One function for each kind of target, so that every module is built with the same flags.

# lockstep_find_package(<name> ...): find_package(... REQUIRED) for something that the libraries of this folder link; who finds
# the installed module finds it again. What only our programs and tests use needs plain find_package.
macro(lockstep_find_package name)
  find_package(${name} ${ARGN} REQUIRED)
  list(APPEND lockstep_packages ${name})
endmacro()

# lockstep_export(<target> <module> LIBS ...): installs a library, as Lockstep::<module>, with a list of what it links.
function(lockstep_export target module)
  cmake_parse_arguments(arg "" "" "LIBS" ${ARGN})
  list(TRANSFORM arg_LIBS REPLACE "^(lockstep_|Lockstep::)" "" OUTPUT_VARIABLE links)
  list(FILTER links EXCLUDE REGEX "::|^(utf8proc|sodium)$") # other people's
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_MODULES ${module})
  set_property(GLOBAL PROPERTY LOCKSTEP_LINKS_${module} ${links})
  set_property(GLOBAL PROPERTY LOCKSTEP_PACKAGES_${module} ${lockstep_packages})
  set(lockstep_development dev)
  if(DEFINED lockstep_component)
    set(lockstep_development ${lockstep_component})
  endif()
  if(LOCKSTEP_INSTALL)
    install(
      TARGETS ${target}
      EXPORT LockstepTargets-${module}
      ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${lockstep_development}
    )
    install(
      EXPORT LockstepTargets-${module}
      NAMESPACE Lockstep::
      DESTINATION ${lockstep_config_dir}
      COMPONENT ${lockstep_development}
    )
  endif()
endfunction()

# The headers of <targets>, for <target> alone: what includes or links it sees nothing of them.
function(lockstep_private_headers target)
  foreach(library ${ARGN})
    target_include_directories(${target} SYSTEM PRIVATE $<TARGET_PROPERTY:${library},INTERFACE_INCLUDE_DIRECTORIES>)
  endforeach()
endfunction()

# lockstep_batch(<target> <size>): compiles so many sources of <target> at a time, or as many as LOCKSTEP_UNITY_BATCH says.
function(lockstep_batch target size)
  if(LOCKSTEP_UNITY_BATCH)
    set(size ${LOCKSTEP_UNITY_BATCH})
    get_target_property(sources ${target} SOURCES)
    list(LENGTH sources count)
    if(count GREATER 0) # batches of one size: 13 sources are 7 and 6, not 12 and 1
      math(EXPR batches "(${count} + ${size} - 1) / ${size}")
      math(EXPR size "(${count} + ${batches} - 1) / ${batches}")
    endif()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${LOCKSTEP_UNITY} UNITY_BUILD_BATCH_SIZE ${size})
endfunction()

# lockstep_slow_sources(<source> ...): these take long by themselves, so a rebuild of others should not compile them too.
function(lockstep_slow_sources)
  if(NOT LOCKSTEP_UNITY_BATCH)
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# Flags, precompiled header and unity build of every target. HEADER torch or plain (lockstep/pch). Sources are compiled
# several at a time: each compilation costs a second or more before its first line. One with flags of its own
# (set_source_files_properties COMPILE_OPTIONS) or SKIP_UNITY_BUILD_INCLUSION compiles by itself. TEST: not optimized, since
# optimizing takes half of a compilation and nobody waits for a test's own code.
function(lockstep_compile_options target)
  cmake_parse_arguments(arg "TEST" "HEADER" "" ${ARGN})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(
    ${target}
    PRIVATE
      -Wall
      -Wextra
      -Wnon-virtual-dtor
      -Woverloaded-virtual
      $<$<CXX_COMPILER_ID:Clang>:-Wno-missing-braces>
      $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
      $<$<CXX_COMPILER_ID:Clang>:-Werror=thread-safety>
      # It takes each source of a unity build for a header, warns of members that a designated initializer leaves out on purpose
      # (clang does not), and of its own std::string once that is inlined (g++ 12).
      $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>
      $<$<CXX_COMPILER_ID:GNU>:-Wno-missing-field-initializers>
      $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds>
      $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>
      $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overread>
      $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  )
  if(LOCKSTEP_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  set(flags)
  if(arg_TEST)
    set(flags TEST)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O0>)
  endif()
  if(NOT arg_HEADER)
    return()
  endif()
  if(CMAKE_DISABLE_PRECOMPILE_HEADERS)
    target_compile_options(${target} PRIVATE -include ${PROJECT_SOURCE_DIR}/lockstep/pch/${arg_HEADER}.h)
  else()
    target_precompile_headers(${target} REUSE_FROM lockstep_${arg_HEADER}_pch${flags})
  endif()
  if(arg_TEST) # tests have small names that repeat
    set(LOCKSTEP_UNITY_BATCH "")
  endif()
  if(arg_HEADER STREQUAL "torch")
    lockstep_batch(${target} 3)
    target_link_libraries(${target} PRIVATE lockstep_torch_fmt) # LibTorch's headers on the path mean its fmt too
  else()
    lockstep_batch(${target} 4)
  endif()
endfunction()

# lockstep_sees_torch(<file> <result>): does it include a header of LibTorch, directly or by headers of ours? As its includes
# are when CMake runs.
function(lockstep_sees_torch file result)
  get_property(sees GLOBAL PROPERTY LOCKSTEP_SEES_TORCH_${file})
  if("${sees}" STREQUAL "")
    set(sees NO)
    file(STRINGS ${file} lines REGEX "^#include [<\"]")
    foreach(line IN LISTS lines)
      if(line MATCHES "^#include [<\"](ATen|c10|torch)/")
        set(sees YES)
      elseif(line MATCHES "^#include \"([^\"]+)\"")
        string(REGEX REPLACE "^lockstep/zoo/" "zoo/" included ${CMAKE_MATCH_1})
        string(REGEX REPLACE "^lockstep/zoo[.]h$" "zoo/zoo.h" included ${included})
        set(included ${PROJECT_SOURCE_DIR}/${included})
        if(EXISTS ${included})
          lockstep_sees_torch(${included} sees)
        endif()
      endif()
      if(sees)
        break()
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY LOCKSTEP_SEES_TORCH_${file} ${sees})
  endif()
  set(${result} ${sees} PARENT_SCOPE)
endfunction()

# lockstep_sources(<target> [PCH] [TEST] SOURCES ... [LIBS ...] [HEADERS ...]): what the functions below have in common. PCH: some
# sources see LibTorch's headers. Those that do not are compiled apart: that is faster, and a program that uses only them does
# not load LibTorch. HEADERS: targets of which only the headers are used.
function(lockstep_sources target)
  cmake_parse_arguments(arg "PCH;TEST" "" "SOURCES;LIBS;HEADERS" ${ARGN})
  set(test)
  if(arg_TEST)
    set(test TEST)
  endif()
  lockstep_private_headers(${target} ${arg_HEADERS})
  if(NOT arg_PCH)
    target_sources(${target} PRIVATE ${arg_SOURCES})
    lockstep_compile_options(${target} HEADER plain ${test})
    return()
  endif()
  set(plain)
  foreach(source IN LISTS arg_SOURCES)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE file)
    set(sees YES) # what is generated
    if(EXISTS ${file})
      lockstep_sees_torch(${file} sees)
    endif()
    if(sees)
      target_sources(${target} PRIVATE ${source})
    else()
      list(APPEND plain ${source})
    endif()
  endforeach()
  lockstep_compile_options(${target} HEADER torch ${test})
  if(plain)
    add_library(${target}_without_torch OBJECT ${plain})
    target_include_directories(${target}_without_torch PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/include)
    target_link_libraries(${target}_without_torch PRIVATE ${arg_LIBS})
    lockstep_private_headers(${target}_without_torch ${arg_HEADERS})
    lockstep_compile_options(${target}_without_torch HEADER plain ${test})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_without_torch>)
  endif()
endfunction()

# lockstep_not_built(<name> <reason>): a program or test that this build lacks becomes a skipped test, so that scripts/test
# counts and names it.
function(lockstep_not_built name reason)
  if(LOCKSTEP_TESTS)
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: not built: ${reason}")
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "skipped: not built")
  endif()
endfunction()

# lockstep_library(<name> [PCH] SOURCES ... [LIBS ...] [PRIVATE_LIBS ...] [HEADERS ...])  ->  static
# library lockstep_<name>, exported as Lockstep::<name>.
function(lockstep_library name)
  cmake_parse_arguments(arg "PCH" "" "SOURCES;LIBS;PRIVATE_LIBS;HEADERS" ${ARGN})
  add_library(lockstep_${name} STATIC)
  add_library(Lockstep::${name} ALIAS lockstep_${name})
  set_target_properties(lockstep_${name} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(
    lockstep_${name}
    PUBLIC
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
      $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
  )
  target_link_libraries(lockstep_${name} PUBLIC ${arg_LIBS} PRIVATE ${arg_PRIVATE_LIBS})
  set(pch)
  set(private)
  if(arg_PCH)
    set(pch PCH)
    set(private lockstep_torch_fmt)
  endif()
  lockstep_sources(lockstep_${name} ${pch} SOURCES ${arg_SOURCES}
                   LIBS ${arg_LIBS} ${arg_PRIVATE_LIBS} HEADERS ${arg_HEADERS}
  )
  lockstep_export(lockstep_${name} ${name} LIBS ${arg_LIBS} ${arg_PRIVATE_LIBS} ${private})
endfunction()

# lockstep_program(<name> [STANDALONE] [PCH] SOURCES ... [LIBS ...])  ->  build/bin/<name>, installed.
# It belongs to the package lockstep-tools, or to that of `lockstep_component` (LockstepPackages.cmake). STANDALONE: it needs
# neither LibTorch nor Arrow. Any other is installed into libexec, and bin/<name> finds the two and starts it (tools/start).
function(lockstep_program name)
  cmake_parse_arguments(arg "STANDALONE" "" "LIBS" ${ARGN})
  add_executable(${name})
  target_link_libraries(${name} PRIVATE ${arg_LIBS})
  lockstep_sources(${name} ${arg_UNPARSED_ARGUMENTS} LIBS ${arg_LIBS})
  if(NOT LOCKSTEP_INSTALL)
    return()
  endif()
  set(lockstep_package tools)
  if(DEFINED lockstep_component)
    set(lockstep_package ${lockstep_component})
  endif()
  if(arg_STANDALONE)
    install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${lockstep_package})
  else()
    install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/lockstep COMPONENT ${lockstep_package})
    install(
      PROGRAMS $<TARGET_FILE:lockstep_start>
      DESTINATION ${CMAKE_INSTALL_BINDIR}
      RENAME ${name}
      COMPONENT ${lockstep_package}
    )
  endif()
endfunction()
