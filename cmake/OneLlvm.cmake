# What codegen takes of LLVM, out of LLVM's static libraries into one shared library of ours: a wheel then carries the 20
# MB of LLVM that the package uses, once for the command and the Python module, and not the 130 MB of libLLVM.so.
#   stepc_one_llvm(CODEGEN): makes libstepc_llvm.so, which what links CODEGEN loads. No target may link stepc_llvm before
#   CODEGEN is compiled: the library exports the names that CODEGEN's objects ask for, and nothing else.
function(stepc_one_llvm codegen)
  execute_process(COMMAND ${LLVM_TOOLS_BINARY_DIR}/llvm-config --link-static --libfiles orcjit passes x86
                  OUTPUT_VARIABLE libraries OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(libraries)
  # LLVM reads compressed sections with these. Their -dev packages need not be there: LLVM's own library loads them too.
  foreach(compression z zstd)
    find_library(STEPC_${compression} NAMES ${compression} lib${compression}.so.1 REQUIRED)
    list(APPEND libraries ${STEPC_${compression}})
  endforeach()
  set(names ${CMAKE_CURRENT_BINARY_DIR}/llvm_names)
  add_custom_command(
    OUTPUT ${names}.map ${names}.options
    COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DARCHIVE=$<TARGET_FILE:${codegen}> -DNAMES=${names}
            -P ${PROJECT_SOURCE_DIR}/cmake/llvm_names.cmake
    DEPENDS ${codegen} ${PROJECT_SOURCE_DIR}/cmake/llvm_names.cmake VERBATIM)
  file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/one_llvm.cpp CONTENT "// carries libraries\n")
  add_library(stepc_llvm SHARED ${CMAKE_CURRENT_BINARY_DIR}/one_llvm.cpp ${names}.map)
  target_link_libraries(stepc_llvm PRIVATE ${libraries})
  target_link_options(stepc_llvm PRIVATE @${names}.options -Wl,--version-script=${names}.map -Wl,--gc-sections
                      -Wl,-Bsymbolic-functions)
  set_target_properties(stepc_llvm PROPERTIES LINK_DEPENDS "${names}.map;${names}.options")
  # By its file, since a target would have to be there before CODEGEN.
  target_link_libraries(${codegen} INTERFACE ${CMAKE_CURRENT_BINARY_DIR}/libstepc_llvm.so)
  install(TARGETS stepc_llvm LIBRARY DESTINATION stepc COMPONENT python)
endfunction()
