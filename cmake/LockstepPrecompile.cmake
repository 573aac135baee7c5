# lockstep_precompile_headers(<target> [HEADER...]): compiles these headers once for all sources of a target, by default
# lockstep/lockstep.h. Every later rebuild of a source saves the 7 to 20 s that reading LibTorch's headers takes.
function(lockstep_precompile_headers target)
  set(headers ${ARGN})
  if(NOT headers)
    set(headers lockstep/lockstep.h)
  endif()
  list(TRANSFORM headers PREPEND "<")
  list(TRANSFORM headers APPEND ">")
  target_precompile_headers(${target} PRIVATE ${headers})
endfunction()
