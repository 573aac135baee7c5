# cmake -DSOURCE=... -DOUTPUT=... -P git_revision.cmake: writes a header with the revision that is being built. The header
# changes only with the revision, so that nothing is compiled in vain.
execute_process(
  COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE revision
  OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_QUIET
  RESULT_VARIABLE result
)
execute_process(
  COMMAND git -C ${SOURCE} rev-parse --show-toplevel
  OUTPUT_VARIABLE top
  OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_QUIET
)
# An unpacked archive may lie in somebody else's repository.
if(NOT result EQUAL 0 OR NOT top STREQUAL SOURCE)
  set(revision "not built from a git checkout")
endif()
set(text "#define LOCKSTEP_GIT_REVISION \"${revision}\"\n")
set(before "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT text STREQUAL before)
  file(WRITE ${OUTPUT} "${text}")
endif()
