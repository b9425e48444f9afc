# LibTorch out of the PyPI wheel, without Python and without a CUDA toolkit: find_package(Torch) of the wheel's own CMake
# files stops where no toolkit is installed. Defines TorchWheel::torch. Installed beside stepcConfig.cmake.
#   STEPC_TORCH_DIR  the wheel's `torch` folder; default: that of the interpreter which pip builds for, else of the
#                    project's own .venv
if(STEPC_TORCH_DIR AND NOT EXISTS "${STEPC_TORCH_DIR}")  # .venv was made again, with another Python
  unset(STEPC_TORCH_DIR CACHE)
  unset(STEPC_TORCH_DIR)
endif()
if(NOT STEPC_TORCH_DIR AND SKBUILD)
  set(STEPC_TORCH_DIR $ENV{STEPC_TORCH_DIR})  # where src/python/torch_requirement.py looks, too
endif()
if(NOT STEPC_TORCH_DIR AND SKBUILD)
  # A build in isolation does not see the environment's packages on its path; they are there all the same.
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import sysconfig; print(sysconfig.get_path('platlib'))"
                  OUTPUT_VARIABLE _site OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(EXISTS "${_site}/torch/version.py")
    set(STEPC_TORCH_DIR ${_site}/torch)
  endif()
endif()
if(NOT STEPC_TORCH_DIR)
  file(GLOB _candidates "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
  if(_candidates)
    list(GET _candidates 0 _found)
    set(STEPC_TORCH_DIR ${_found} CACHE PATH "Folder of the torch wheel" FORCE)
  endif()
endif()
# Looked for anew each time: a remembered path could be that of another wheel.
find_library(TorchWheel_CPU_LIBRARY torch_cpu PATHS "${STEPC_TORCH_DIR}/lib" NO_DEFAULT_PATH NO_CACHE)
find_library(TorchWheel_C10_LIBRARY c10 PATHS "${STEPC_TORCH_DIR}/lib" NO_DEFAULT_PATH NO_CACHE)
if(EXISTS "${STEPC_TORCH_DIR}/version.py")
  file(STRINGS "${STEPC_TORCH_DIR}/version.py" _line REGEX "^__version__ = ")
  string(REGEX REPLACE ".*'([0-9.]+).*" "\\1" TorchWheel_VERSION "${_line}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${STEPC_TORCH_DIR}/version.py")  # another one in its place
endif()

set(_first 2.11)  # src/python/torch_requirement.py has them too
set(_last 2.15)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchWheel
  REQUIRED_VARS TorchWheel_CPU_LIBRARY TorchWheel_C10_LIBRARY VERSION_VAR TorchWheel_VERSION
  REASON_FAILURE_MESSAGE
    "run `make setup`, or set STEPC_TORCH_DIR to the `torch` folder of a torch wheel, ${_first} to ${_last}")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" TorchWheel_SERIES "${TorchWheel_VERSION}")
if(TorchWheel_FOUND AND (TorchWheel_SERIES VERSION_LESS _first OR TorchWheel_SERIES VERSION_GREATER _last))
  message(FATAL_ERROR "stepc is built against torch ${_first} to ${_last}, found ${TorchWheel_VERSION} in ${STEPC_TORCH_DIR}")
endif()

if(TorchWheel_FOUND AND NOT TARGET TorchWheel::torch)
  add_library(TorchWheel::torch INTERFACE IMPORTED)
  # -idirafter: the wheel also carries copies of fmt and others, which must not hide the system's.
  target_compile_options(TorchWheel::torch INTERFACE
    "SHELL:-idirafter ${STEPC_TORCH_DIR}/include/torch/csrc/api/include" "SHELL:-idirafter ${STEPC_TORCH_DIR}/include"
    -fopenmp)  # without it at::parallel_for is silently serial
  # The wheel's own libgomp, not the system's: one OpenMP runtime in the process.
  target_link_libraries(TorchWheel::torch INTERFACE ${TorchWheel_CPU_LIBRARY} ${TorchWheel_C10_LIBRARY}
                        ${STEPC_TORCH_DIR}/lib/libgomp.so.1)
  target_link_options(TorchWheel::torch INTERFACE -Wl,--allow-shlib-undefined
                      $<$<NOT:$<BOOL:${STEPC_WHEEL}>>:-Wl,-rpath,${STEPC_TORCH_DIR}/lib>)
endif()

# For Python extensions: torch/torch.h's bindings. Wheels that have no Python part (libtorch alone) have it too.
if(TorchWheel_FOUND AND NOT TARGET TorchWheel::python)
  add_library(TorchWheel::python INTERFACE IMPORTED)
  target_link_libraries(TorchWheel::python INTERFACE TorchWheel::torch ${STEPC_TORCH_DIR}/lib/libtorch_python.so)
endif()
