# lockstep_find_wheel(<package> <directory> <named by>): where a Python's wheel of <package> lies, which carries a C++
# library: that of LOCKSTEP_PYTHON, of the active environment, or of python3 on PATH. Empty where there is none.
function(lockstep_find_wheel package directory named_by)
  set(${directory} "" PARENT_SCOPE)
  set(pythons "${LOCKSTEP_PYTHON}")
  foreach(environment VIRTUAL_ENV CONDA_PREFIX)
    if(DEFINED ENV{${environment}})
      list(APPEND pythons "$ENV{${environment}}/bin/python")
    endif()
  endforeach()
  foreach(python ${pythons} python3)
    execute_process(
      COMMAND ${python} -c "import importlib.util as u; print(u.find_spec('${package}').submodule_search_locations[0])"
      WORKING_DIRECTORY ${CMAKE_CURRENT_FUNCTION_LIST_DIR}
      OUTPUT_VARIABLE found
      OUTPUT_STRIP_TRAILING_WHITESPACE
      RESULT_VARIABLE rc
      ERROR_QUIET
    )
    if(rc EQUAL 0)
      set(${directory} ${found} PARENT_SCOPE)
      set(${named_by} ${python} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()
