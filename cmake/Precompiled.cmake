# Precompiled headers, chosen file by file. A header costs every file that gets it, also unused: g++ instantiates at the
# end of each file what the inline functions in it name, which takes 2 s of ATen's headers, 4 s with torch::nn::Module's
# and 6 s of torch/torch.h. So a file gets the smallest that has what it reaches through its includes. Every file compiles
# without, too: nothing may rely on what comes in this way.
#
#   plain         the standard library and fmt: the folders without LibTorch
#   test          those and GoogleTest: their tests
#   aten          ATen and the dispatcher
#   torch         those, torch::nn::Module and the optimizers' base
#   plain_beside  as plain and test, compiled with LibTorch's flags: what reaches nothing of it in the folders
#   test_beside   that use it, and in their tests

# stepc_precompiled(NAME [LIBRARIES target ...] HEADERS header ...)
function(stepc_precompiled name)
  cmake_parse_arguments(ARG "" "" "LIBRARIES;HEADERS" ${ARGN})
  file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/pch_${name}.cpp CONTENT "// carries the precompiled header\n")
  add_library(stepc_pch_${name} STATIC ${CMAKE_CURRENT_BINARY_DIR}/pch_${name}.cpp)
  target_link_libraries(stepc_pch_${name} PRIVATE ${ARG_LIBRARIES})
  target_precompile_headers(stepc_pch_${name} PRIVATE ${ARG_HEADERS})
  set_property(GLOBAL PROPERTY STEPC_PCH_${name} ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/stepc_pch_${name}.dir/cmake_pch.hxx)
endfunction()

# The name of the header that FILE is worth: aten, torch or nothing. Where this is out of date, because an include came
# in since, a file compiles more slowly and not otherwise.
function(stepc_torch_reach file result)
  get_property(known GLOBAL PROPERTY "STEPC_REACH_${file}" SET)
  if(NOT known)
    set_property(GLOBAL PROPERTY "STEPC_REACH_${file}" "")  # ends a circle of includes
    set(reach "")
    file(STRINGS ${file} lines REGEX "^#include ")
    foreach(line IN LISTS lines)
      set(below "")
      if(line MATCHES "<torch/(torch|types|utils|nn|optim)[./]")
        set(below torch)
      elseif(line MATCHES "<(ATen|c10|torch)/")
        set(below aten)
      elseif(line MATCHES "\"(.+)\"")
        foreach(base ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
          if(EXISTS ${base}/${CMAKE_MATCH_1})
            stepc_torch_reach(${base}/${CMAKE_MATCH_1} below)
            break()
          endif()
        endforeach()
      endif()
      if(below STREQUAL torch OR reach STREQUAL "")
        set(reach "${below}")
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY "STEPC_REACH_${file}" "${reach}")
  endif()
  get_property(reach GLOBAL PROPERTY "STEPC_REACH_${file}")
  set(${result} "${reach}" PARENT_SCOPE)
endfunction()

# How many files that get header NAME in a folder of KIND (stepc_precompile) are compiled as one: what a file pays for the
# header it pays once a group. For torch that is nine tenths of a file's time, for aten a third, so four of these files are
# grouped always: also who changes one of them gains or loses little. Where every file is compiled and none changed, under
# the sanitizers and with STEPC_GROUPED, eight are, of every header, which takes a third to a half less time; but for tests
# that use LibTorch: optimising eight of them at once takes longer. So no two files of a folder may define the same name.
function(stepc_group_size name kind result)
  set(${result} 1 PARENT_SCOPE)
  set(is_torch FALSE)
  if("${name}" MATCHES "^(torch|aten)$")
    set(is_torch TRUE)
  endif()
  if((STEPC_SANITIZE OR STEPC_GROUPED) AND NOT (is_torch AND kind STREQUAL "torch_test"))
    set(${result} 8 PARENT_SCOPE)
  elseif(is_torch)
    set(${result} 4 PARENT_SCOPE)
  endif()
endfunction()

# Gives the sources of TARGET the header NAME.
function(stepc_give_header target name)
  get_property(header GLOBAL PROPERTY STEPC_PCH_${name})
  set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS -Winvalid-pch -include ${header})
  set_property(SOURCE ${ARGN} APPEND PROPERTY OBJECT_DEPENDS ${header}.gch)
  add_dependencies(${target} stepc_pch_${name})
endfunction()

# Compiles the sources, given by their whole paths, of TARGET as one file; one alone is its own.
function(stepc_group target name)
  if(ARGC EQUAL 3)
    stepc_give_header(${target} ${name} ${ARGN})
    return()
  endif()
  get_property(number TARGET ${target} PROPERTY STEPC_GROUPS)
  math(EXPR number "0${number} + 1")
  set_property(TARGET ${target} PROPERTY STEPC_GROUPS ${number})
  set(defined "")
  foreach(source ${ARGN})
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    if(definitions)
      list(APPEND defined ${definitions})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES defined)
  # Named as other files name them, by what is searched for includes: alike in every checkout.
  list(TRANSFORM ARGN REPLACE "^${PROJECT_SOURCE_DIR}/(src/)?(.+)" "#include \"\\2\"\n" OUTPUT_VARIABLE lines)
  list(JOIN lines "" text)
  set(group ${CMAKE_CURRENT_BINARY_DIR}/groups/${target}_${number}.cpp)
  file(CONFIGURE OUTPUT ${group} CONTENT "${text}" @ONLY)
  set_property(SOURCE ${ARGN} PROPERTY HEADER_FILE_ONLY ON)
  target_sources(${target} PRIVATE ${group})
  # What is in an anonymous namespace of an included file has one definition all the same: nothing includes a group.
  set_property(SOURCE ${group} APPEND PROPERTY COMPILE_OPTIONS -Wno-subobject-linkage)
  # g++ takes a variant's other members for uninitialised where it sees more of the program at once.
  if("${name}" MATCHES "^(plain|test)")
    set_property(SOURCE ${group} APPEND PROPERTY COMPILE_OPTIONS -Wno-maybe-uninitialized)
  endif()
  set_property(SOURCE ${group} APPEND PROPERTY COMPILE_DEFINITIONS ${defined})
  stepc_give_header(${target} ${name} ${group})
endfunction()

# stepc_precompile(TARGET plain | test | torch | torch_test): the last two choose by file. Of g++ only: clang keeps its
# headers otherwise. Files with the property STEPC_APART are grouped with each other: a library that they alone need is
# linked only where they are.
function(stepc_precompile target kind)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE OUTPUT_VARIABLE path)
    set(name ${kind})
    if(kind MATCHES "^torch")
      stepc_torch_reach(${path} name)
      if(NOT name AND kind STREQUAL "torch")
        set(name plain_beside)
      elseif(NOT name)
        set(name test_beside)
      endif()
    endif()
    get_source_file_property(unused ${source} HEADER_FILE_ONLY)
    get_source_file_property(options ${source} COMPILE_OPTIONS)  # a header serves the flags that it was made with
    if(unused OR options)
      continue()
    endif()
    get_source_file_property(alone ${source} SKIP_UNITY_BUILD_INCLUSION)
    stepc_group_size(${name} ${kind} size)
    if(size EQUAL 1 OR alone)
      stepc_give_header(${target} ${name} ${source})
      continue()
    endif()
    get_source_file_property(apart ${source} STEPC_APART)
    set(group group_${name})
    if(apart)
      string(APPEND group _apart)
    endif()
    list(APPEND ${group} ${path})
    list(LENGTH ${group} length)
    if(length EQUAL size)
      stepc_group(${target} ${name} ${${group}})
      set(${group} "")
    endif()
  endforeach()
  foreach(name IN ITEMS plain test plain_beside test_beside aten torch)
    foreach(group IN ITEMS group_${name} group_${name}_apart)
      if(${group})
        stepc_group(${target} ${name} ${${group}})
      endif()
    endforeach()
  endforeach()
endfunction()
