# cmake -DNM=... -DARCHIVE=... -DNAMES=... -P llvm_names.cmake: the names of LLVM that the archive's objects ask for, as a
# version script (NAMES.map) and as options that make a linker look for them (NAMES.options).
execute_process(COMMAND ${NM} --undefined-only --format=just-symbols ${ARCHIVE} OUTPUT_VARIABLE listed
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]*(4llvm|LLVM)[^\n]*" names "${listed}")
list(FILTER names EXCLUDE REGEX "^_ZNK?5stepc")
list(REMOVE_DUPLICATES names)
list(SORT names)
list(JOIN names ";\n  " exported)
file(WRITE ${NAMES}.map "{\n global:\n  ${exported};\n local:\n  *;\n};\n")
list(TRANSFORM names PREPEND "-Wl,-u," OUTPUT_VARIABLE options)
list(JOIN options "\n" options)
file(WRITE ${NAMES}.options "${options}\n")
