# LOCKSTEP_MPI: do MPI's compiler, header and library work together here? Then there is a target Lockstep::mpi.
# LOCKSTEP_MPI_FOUND says in words what was found.
# Never an error: only `lockstep bench --against mpi` needs MPI. What was found is looked for again at each configuration.
find_program(LOCKSTEP_MPI_COMPILER NAMES mpicxx mpic++ mpicxx.openmpi mpicxx.mpich HINTS ENV MPI_HOME PATH_SUFFIXES bin)
mark_as_advanced(LOCKSTEP_MPI_COMPILER)
set(LOCKSTEP_MPI OFF)
if(NOT LOCKSTEP_MPI_COMPILER)
  set(LOCKSTEP_MPI_FOUND "no MPI compiler (mpicxx)")
else()
  # -showme:incdirs is Open MPI's, -show that of MPICH and those that come from it.
  execute_process(
    COMMAND ${LOCKSTEP_MPI_COMPILER} -showme:incdirs
    OUTPUT_VARIABLE lockstep_mpi_includes
    RESULT_VARIABLE lockstep_rc
    ERROR_QUIET
    OUTPUT_STRIP_TRAILING_WHITESPACE
  )
  if(NOT lockstep_rc EQUAL 0)
    execute_process(
      COMMAND ${LOCKSTEP_MPI_COMPILER} -show
      OUTPUT_VARIABLE lockstep_mpi_command
      ERROR_QUIET
      OUTPUT_STRIP_TRAILING_WHITESPACE
    )
    string(REGEX MATCHALL "-I *[^ ]+" lockstep_mpi_includes "${lockstep_mpi_command}")
    string(REGEX REPLACE "-I *" "" lockstep_mpi_includes "${lockstep_mpi_includes}")
  endif()
  separate_arguments(lockstep_mpi_includes)
  unset(LOCKSTEP_MPI_HEADER CACHE)
  find_file(LOCKSTEP_MPI_HEADER mpi.h PATHS ${lockstep_mpi_includes})
  mark_as_advanced(LOCKSTEP_MPI_HEADER)
  if(NOT LOCKSTEP_MPI_HEADER)
    set(LOCKSTEP_MPI_FOUND "${LOCKSTEP_MPI_COMPILER} without its header mpi.h (Debian: libopenmpi-dev)")
  else()
    set(lockstep_check ${PROJECT_BINARY_DIR}/mpi_check)
    file(REMOVE_RECURSE ${lockstep_check})
    execute_process(
      COMMAND
        ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/mpi_check -B ${lockstep_check} -G ${CMAKE_GENERATOR}
        -DCMAKE_MAKE_PROGRAM=${CMAKE_MAKE_PROGRAM} -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
        -DMPI_CXX_COMPILER=${LOCKSTEP_MPI_COMPILER}
      OUTPUT_VARIABLE lockstep_output
      ERROR_VARIABLE lockstep_output
    )
    file(WRITE ${lockstep_check}/check.log "${lockstep_output}")
    execute_process(
      COMMAND ${CMAKE_COMMAND} --build ${lockstep_check}
      OUTPUT_VARIABLE lockstep_output
      ERROR_VARIABLE lockstep_output
      RESULT_VARIABLE lockstep_rc
    )
    file(APPEND ${lockstep_check}/check.log "${lockstep_output}")
    if(lockstep_rc EQUAL 0)
      set(LOCKSTEP_MPI ON)
      set(LOCKSTEP_MPI_FOUND "${LOCKSTEP_MPI_COMPILER}, ${LOCKSTEP_MPI_HEADER}")
      include(${lockstep_check}/found.cmake)
    else()
      set(
        LOCKSTEP_MPI_FOUND
        "${LOCKSTEP_MPI_COMPILER}, but a program does not compile and link with it (mpi_check/check.log in the build directory)"
      )
    endif()
  endif()
endif()
message(STATUS "MPI: ${LOCKSTEP_MPI_FOUND}")
