# What a wheel links otherwise. All folders are one shared library, which the command and the Python module share, and what
# it uses of LLVM is in it: 43 MB together, where libLLVM.so alone has 130 and brings libraries of its own.

# stepc_llvm(RESULT): the libraries of LLVM that codegen needs. Where there are no static ones, a wheel takes the shared one.
function(stepc_llvm result)
  set(${result} LLVM PARENT_SCOPE)
  if(NOT STEPC_WHEEL)
    return()
  endif()
  execute_process(COMMAND ${LLVM_TOOLS_BINARY_DIR}/llvm-config --link-static --libfiles orcjit passes x86
                  OUTPUT_VARIABLE libraries OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  # LLVM reads compressed sections with these. Their -dev packages need not be there: LLVM's own library loads them too.
  find_library(STEPC_Z NAMES z libz.so.1)
  find_library(STEPC_ZSTD NAMES zstd libzstd.so.1)
  if(failed OR NOT STEPC_Z OR NOT STEPC_ZSTD)
    message(WARNING "LLVM's static libraries, or zlib and zstd for them, are not here: its shared library is taken, which "
                    "makes a much larger wheel")
    return()
  endif()
  separate_arguments(libraries)
  set(${result} ${libraries} ${STEPC_Z} ${STEPC_ZSTD} PARENT_SCOPE)
endfunction()

# stepc_one_library(NAME): libstepc.so, of all folders. It exports the names of stepc and nothing of LLVM, of which another
# version may be in the process.
function(stepc_one_library name)
  get_property(folders GLOBAL PROPERTY STEPC_FOLDERS)
  list(TRANSFORM folders PREPEND stepc_)
  list(TRANSFORM folders REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
  add_library(${name} SHARED ${objects})
  set(exports ${CMAKE_CURRENT_BINARY_DIR}/exports.map)
  file(CONFIGURE OUTPUT ${exports} CONTENT "{ global: *5stepc*; local: *; };\n")
  set_target_properties(${name} PROPERTIES OUTPUT_NAME stepc LINKER_LANGUAGE CXX LINK_DEPENDS ${exports})
  target_link_options(${name} PRIVATE -Wl,--version-script=${exports} -Wl,--gc-sections -Wl,-Bsymbolic-functions
                      -Wl,--as-needed)
  target_include_directories(${name} INTERFACE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE ${folders}
                        INTERFACE fmt::fmt spdlog::spdlog nlohmann_json::nlohmann_json TorchWheel::torch)
endfunction()
