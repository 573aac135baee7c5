# ccache, mold and sanitizers: taken when they are there, never required.
find_program(LOCKSTEP_CCACHE ccache)
if(LOCKSTEP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # A precompiled header is cached only with this sloppiness and the options below. DEPEND: without it every source is
  # preprocessed first, which takes up to a second.
  set(
    CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND}
    -E
    env
    CCACHE_DEPEND=1
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    ${LOCKSTEP_CCACHE}
  )
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess> "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")
endif()

find_program(LOCKSTEP_MOLD mold)
if(LOCKSTEP_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
add_link_options(-Wl,--as-needed)

if(LOCKSTEP_SANITIZE)
  add_compile_options(-fsanitize=${LOCKSTEP_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  if(LOCKSTEP_SANITIZE MATCHES thread)
    # It does not follow stand-alone fences and warns of each; ours order a store before a later load, no data.
    # g++ 12 warns of bounds in the standard library's own strings when it compiles with a sanitizer.
    add_compile_options(
      "$<$<CXX_COMPILER_ID:GNU>:-Wno-tsan;-Wno-error=array-bounds;-Wno-error=restrict;-Wno-error=stringop-overflow>"
    )
  endif()
  add_link_options(-fsanitize=${LOCKSTEP_SANITIZE})
endif()
