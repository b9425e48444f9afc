# Installs the build BUILD_DIR, builds the project beside this file against it, and runs what comes out.
#   cmake -D BUILD_DIR=build/release -P tests/package/run.cmake
set(work ${BUILD_DIR}/package)
set(prefix ${work}/prefix)
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN} ended with ${result}:\n${output}")
  endif()
  message(STATUS "ok: ${ARGN}")
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${work}/build -G Ninja -D CMAKE_BUILD_TYPE=Release
    -D CMAKE_PREFIX_PATH=${prefix})
run(${CMAKE_COMMAND} --build ${work}/build --parallel 2)
# Only the prefix may be needed to run: not the library path, not the place of the build.
foreach(program ${work}/build/plan_memory ${work}/build/train_step)
  if(EXISTS ${program})
    run(${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH ${program})
  endif()
endforeach()
if(EXISTS ${prefix}/bin/stepc)
  run(${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH ${prefix}/bin/stepc --help)
endif()
