# cmake -DPROGRAM=... -DVERSION=... -DOUTPUT=... -P help_texts.cmake: the manual page and bash's completion of a program with
# subcommands, from what its --help prints.
get_filename_component(name ${PROGRAM} NAME)
set(sections "")
set(cases "")

# A semicolon would divide a list.
function(help_of result)
  set(ENV{LOCKSTEP_TERMINAL_COLUMNS} 78)
  execute_process(COMMAND ${PROGRAM} ${ARGN} --help OUTPUT_VARIABLE text RESULT_VARIABLE rc ERROR_VARIABLE error)
  if(NOT rc EQUAL 0)
    message(FATAL_ERROR "${PROGRAM} ${ARGN} --help ended with ${rc}: ${error}")
  endif()
  string(REPLACE ";" "," text "${text}")
  string(REPLACE "[" "(" text "${text}")
  string(REPLACE "]" ")" text "${text}")
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

function(add_command)
  help_of(text ${ARGN})
  list(JOIN ARGN " " words)
  string(REPLACE "\\" "\\e" page "${text}")
  string(REPLACE "-" "\\-" page "${page}")
  string(REGEX REPLACE "\n([.'])" "\n\\\\&\\1" page "${page}")
  string(STRIP "${name} ${words}" title)
  set(sections "${sections}.SH \"${title}\"\n.nf\n${page}.fi\n")
  string(REGEX MATCHALL "\n  --[a-z0-9-]+|, --[a-z0-9-]+" flags "${text}")
  list(TRANSFORM flags REPLACE "[^-]*(--.*)" "\\1")
  set(subcommands)
  if(text MATCHES "\nSubcommands:\n")
    string(REGEX REPLACE ".*\nSubcommands:\n(.*)" "\\1" block "${text}")
    string(REGEX REPLACE "\n\n.*" "" block "${block}")
    string(REGEX MATCHALL "(^|\n)  [a-z][a-z0-9-]*" subcommands "${block}")
    list(TRANSFORM subcommands STRIP)
  endif()
  list(JOIN subcommands " " first)
  list(JOIN flags " " second)
  string(STRIP "${first} ${second}" candidates)
  set(cases "${cases}    \"${words}\") candidates=\"${candidates}\" ;;\n")
  foreach(subcommand IN LISTS subcommands)
    add_command(${ARGN} ${subcommand})
  endforeach()
  set(sections "${sections}" PARENT_SCOPE)
  set(cases "${cases}" PARENT_SCOPE)
endfunction()

add_command()
string(TOUPPER ${name} upper)
file(MAKE_DIRECTORY ${OUTPUT})
file(
  WRITE ${OUTPUT}/${name}.1
  ".TH ${upper} 1 \"\" \"Lockstep ${VERSION}\"\n.SH NAME\n${name} \\- tools around training with Lockstep\n${sections}.SH \"SEE ALSO\"\n.BR lockrun (1)\n"
)
file(
  WRITE ${OUTPUT}/${name}
  "_${name}() {
  local word words='' candidates=''
  for word in \"\${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do
    [[ \$word == -* ]] || words+=\"\${words:+ }\$word\"
  done
  case \$words in
${cases}  esac
  COMPREPLY=(\$(compgen -W \"\$candidates\" -- \"\${COMP_WORDS[COMP_CWORD]}\"))
}
complete -o default -F _${name} ${name}
"
)
