# What Debian packages depend on; CPack includes this when it makes them. Tools: the packages that the shared libraries of our
# programs come from, without LibTorch's and Arrow's, which no package has. Development: the same with headers.
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()

# lockstep_package_of(<file> <result>): empty where no package has it.
function(lockstep_package_of file result)
  file(REAL_PATH ${file} real)
  # Where /lib is a link to /usr/lib, the list of files may have either name.
  string(REGEX REPLACE "^/usr" "" short ${real})
  set(found "")
  foreach(path IN ITEMS ${real} ${short} /usr${short})
    execute_process(COMMAND dpkg-query -S ${path} OUTPUT_VARIABLE line ERROR_QUIET RESULT_VARIABLE rc)
    if(rc EQUAL 0)
      string(REGEX REPLACE "[:,].*" "" found "${line}")
      break()
    endif()
  endforeach()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# lockstep_packages_of(<result> <program> ...): what they depend on, with versions where those matter.
function(lockstep_packages_of result)
  set(depends)
  foreach(program IN LISTS ARGN)
    execute_process(COMMAND ldd ${program} OUTPUT_VARIABLE lines ERROR_QUIET)
    execute_process(COMMAND readelf -d ${program} OUTPUT_VARIABLE needed ERROR_QUIET)
    string(REGEX MATCHALL "NEEDED[^[]*[[]([^]]+)[]]" needed "${needed}")
    foreach(entry IN LISTS needed)
      string(REGEX REPLACE ".*[[](.*)[]]" "\\1" library "${entry}")
      string(REPLACE "." "[.]" pattern "${library}")
      string(REPLACE "+" "[+]" pattern "${pattern}")
      if(lines MATCHES "${pattern} => (/[^ ]+)")
        lockstep_package_of(${CMAKE_MATCH_1} package)
        if(package)
          list(APPEND depends ${package})
        endif()
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES depends)
  list(SORT depends)
  set(with_versions)
  foreach(package IN LISTS depends)
    if(package MATCHES "^libc6$|^libstdc[+][+]6$|^libgcc-s1$") # our programs may use what is new in these
      execute_process(
        COMMAND dpkg-query -W -f "\${Version}" ${package}
        OUTPUT_VARIABLE version
      )
      string(REGEX MATCH "^[0-9]+[.][0-9]+" version "${version}")
      list(APPEND with_versions "${package} (>= ${version})")
    else()
      list(APPEND with_versions ${package})
    endif()
  endforeach()
  list(JOIN with_versions ", " joined)
  set(${result} "${joined}" PARENT_SCOPE)
endfunction()

file(GLOB programs ${CPACK_LOCKSTEP_PROGRAMS}/lock*)
list(FILTER programs EXCLUDE REGEX "[.]py$|-mpi$|-tokenize$|-bench-ddp-rank$")
lockstep_packages_of(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS ${programs})
file(GLOB programs ${CPACK_LOCKSTEP_PROGRAMS}/*)
list(
  FILTER programs
  EXCLUDE
  REGEX "[.]py$|/lockrun|/lockstep$|/lockstep-(store|checkpoint|bench-rank|bench-optimizer|bench-mpi|start)|-mpi$"
)
lockstep_packages_of(CPACK_DEBIAN_ZOO_PACKAGE_DEPENDS ${programs})
string(APPEND CPACK_DEBIAN_ZOO_PACKAGE_DEPENDS ", lockstep-tools, liblockstep-dev, libutf8proc-dev, libjpeg-dev, libpng-dev")

# What the CMake package and the static libraries link, and the headers of nlohmann::json.
set(
  CPACK_DEBIAN_DEV_PACKAGE_DEPENDS
  "g++, cmake (>= 3.25), libspdlog-dev, libfmt-dev, libhwy-dev, libxxhash-dev, \
libsodium-dev, libcli11-dev, nlohmann-json3-dev"
)
