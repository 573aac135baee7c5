# Arrow C++: the user's own (find_package(Arrow) through CMAKE_PREFIX_PATH), else a Python's wheel of pyarrow, or
# LOCKSTEP_ARROW_DIR. Shared by the build and by the installed LockstepConfig.cmake, which takes the version that it was built
# with. lockstep_problem says what is wrong.
include(${CMAKE_CURRENT_LIST_DIR}/LockstepWheel.cmake)
if(TARGET Lockstep::arrow)
  return()
endif()
set(lockstep_arrow_wanted "${LOCKSTEP_ARROW_VERSION}")
find_package(Arrow CONFIG QUIET)
if(Arrow_FOUND)
  find_package(Parquet CONFIG REQUIRED)
  set(lockstep_arrow_library Arrow::arrow_shared Parquet::parquet_shared)
  string(REGEX MATCH "^[0-9]+[.][0-9]+" LOCKSTEP_ARROW_VERSION ${Arrow_VERSION})
else()
  if(NOT LOCKSTEP_ARROW_DIR)
    lockstep_find_wheel(pyarrow lockstep_arrow_dir lockstep_named_by)
    if(lockstep_arrow_dir)
      set(LOCKSTEP_ARROW_DIR ${lockstep_arrow_dir} CACHE PATH "Directory of the pyarrow wheel" FORCE)
    endif()
  endif()
  file(GLOB lockstep_arrow_library ${LOCKSTEP_ARROW_DIR}/libarrow.so.[0-9][0-9][0-9][0-9])
  if(NOT lockstep_arrow_library)
    set(
      lockstep_problem
      "Arrow C++ ${lockstep_arrow_wanted} was not found. In a checkout of Lockstep run scripts/setup; or \
activate a Python environment that has pyarrow, or pass -DCMAKE_PREFIX_PATH=/path/to/arrow."
    )
    return()
  endif()
  string(REGEX REPLACE ".*[.]([0-9][0-9])0?([0-9]+)$" "\\1.\\2" LOCKSTEP_ARROW_VERSION ${lockstep_arrow_library})
  string(REGEX REPLACE "libarrow([^/]*)$" "libparquet\\1" lockstep_parquet_library ${lockstep_arrow_library})
  list(APPEND lockstep_arrow_library ${lockstep_parquet_library})
endif()
if(LOCKSTEP_INSTALLED AND NOT LOCKSTEP_ARROW_VERSION STREQUAL lockstep_arrow_wanted)
  set(
    lockstep_problem
    "Arrow ${LOCKSTEP_ARROW_VERSION} (${lockstep_arrow_library}) cannot be used: this Lockstep was built \
with Arrow ${lockstep_arrow_wanted}. Name another one with -DCMAKE_PREFIX_PATH or -DLOCKSTEP_ARROW_DIR."
  )
  return()
endif()
add_library(Lockstep::arrow INTERFACE IMPORTED GLOBAL)
target_link_libraries(Lockstep::arrow INTERFACE ${lockstep_arrow_library})
if(NOT Arrow_FOUND)
  set_target_properties(
    Lockstep::arrow
    PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES ${LOCKSTEP_ARROW_DIR}/include
      INTERFACE_SYSTEM_INCLUDE_DIRECTORIES ${LOCKSTEP_ARROW_DIR}/include
  )
endif()
