# Arrow C++: the user's own (find_package(Arrow) through CMAKE_PREFIX_PATH), else the wheel in .venv.
# Shared by the build and by the installed LockstepConfig.cmake.
if(NOT TARGET Lockstep::arrow)
  add_library(Lockstep::arrow INTERFACE IMPORTED)
  find_package(Arrow CONFIG QUIET)
  if(Arrow_FOUND)
    target_link_libraries(Lockstep::arrow INTERFACE Arrow::arrow_shared)
  else()
    if(NOT LOCKSTEP_ARROW_DIR AND EXISTS "${LOCKSTEP_PYTHON}")
      execute_process(COMMAND ${LOCKSTEP_PYTHON} -c
        "import importlib.util as u; print(u.find_spec('pyarrow').submodule_search_locations[0])"
        OUTPUT_VARIABLE lockstep_arrow_dir OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE lockstep_rc ERROR_QUIET)
      if(lockstep_rc EQUAL 0)
        set(LOCKSTEP_ARROW_DIR ${lockstep_arrow_dir} CACHE PATH "Directory of the pyarrow wheel")
      endif()
    endif()
    file(GLOB lockstep_arrow_library ${LOCKSTEP_ARROW_DIR}/libarrow.so.[0-9][0-9][0-9][0-9])
    if(NOT lockstep_arrow_library)
      message(FATAL_ERROR "Arrow C++ was not found. In a checkout of Lockstep run scripts/setup; "
        "or pass -DCMAKE_PREFIX_PATH=/path/to/arrow.")
    endif()
    set_target_properties(Lockstep::arrow PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES ${LOCKSTEP_ARROW_DIR}/include
      INTERFACE_SYSTEM_INCLUDE_DIRECTORIES ${LOCKSTEP_ARROW_DIR}/include
      INTERFACE_LINK_LIBRARIES ${lockstep_arrow_library})
    target_link_options(Lockstep::arrow INTERFACE -Wl,-rpath,${LOCKSTEP_ARROW_DIR})
  endif()
endif()
