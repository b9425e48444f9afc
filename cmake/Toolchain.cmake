# Compiler cache, linker, warnings and sanitizers. Nothing here changes what a translation unit means.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "stepc needs g++ 12 or newer, found ${CMAKE_CXX_COMPILER_VERSION}")
endif()

find_program(STEPC_CCACHE ccache)
if(STEPC_CCACHE)
  # Precompiled headers are only cacheable when ccache is told that their time stamps and defines may differ. What lies
  # below the source tree is named from the build folder, so that all checkouts share what one has compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${STEPC_CCACHE})
endif()
find_program(STEPC_MOLD mold)
if(STEPC_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_compile_options(-Wall -Wextra -Wno-unused-parameter -fpch-preprocess -fno-omit-frame-pointer)
# The same line in every build folder: __FILE__ in error messages is relative to the source tree.
if(STEPC_CCACHE)
  file(RELATIVE_PATH sources ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR})
else()
  set(sources ${PROJECT_SOURCE_DIR}/)
endif()
add_compile_options(-fmacro-prefix-map=${sources}=)
if(STEPC_SANITIZE)
  # g++ takes a variant's other members for uninitialised where a sanitizer's checks stand between.
  add_compile_options(-fsanitize=${STEPC_SANITIZE} -fno-sanitize-recover=all
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-maybe-uninitialized>)
  add_link_options(-fsanitize=${STEPC_SANITIZE})
  if(STEPC_SANITIZE MATCHES address AND NOT STEPC_FUZZ)
    # ASan ends at a null pointer and beyond an object, too. These checks, and those of alignment, stand at every access and
    # take a quarter of the compiler's time; alignment is checked where bytes of files become numbers (stepc_folder data).
    add_compile_options(-fno-sanitize=null,object-size,alignment)
  endif()
endif()
if(STEPC_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)  # what libFuzzer steers by
endif()

# Two heavy LibTorch files at once need about 2.5 GB; more jobs than cores gain nothing.
set_property(GLOBAL PROPERTY JOB_POOLS link=2)
set(CMAKE_JOB_POOL_LINK link)
