# Apache Arrow's Parquet reader out of the PyPI wheel pyarrow, which has the headers and the libraries in it. Optional:
# without it the build refuses .parquet files. Sets PyArrow_INCLUDE_DIR and PyArrow_LIBRARIES.
#   STEPC_PYARROW_DIR  the wheel's `pyarrow` folder; default: that of the environment which pip builds for,
#                      else that of the project's own .venv
if(NOT STEPC_PYARROW_DIR AND SKBUILD)
  # pip's build: the environment that the package goes into, never a checkout's own.
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import sysconfig; print(sysconfig.get_path('platlib'))"
                  OUTPUT_VARIABLE _site OUTPUT_STRIP_TRAILING_WHITESPACE)
  file(GLOB _found "${_site}/pyarrow/libparquet.so.*")
  if(_found)
    set(STEPC_PYARROW_DIR ${_site}/pyarrow)
  endif()
elseif(NOT STEPC_PYARROW_DIR)
  # CONFIGURE_DEPENDS: installing or removing the wheel configures the next build again.
  file(GLOB _found CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/pyarrow/libparquet.so.*")
  if(_found)
    list(GET _found 0 _found)
    cmake_path(GET _found PARENT_PATH STEPC_PYARROW_DIR)
  endif()
endif()
if(STEPC_PYARROW_DIR)
  file(GLOB PyArrow_LIBRARIES "${STEPC_PYARROW_DIR}/libparquet.so.*" "${STEPC_PYARROW_DIR}/libarrow.so.*")
  set(PyArrow_INCLUDE_DIR "${STEPC_PYARROW_DIR}/include")
  if(EXISTS "${PyArrow_INCLUDE_DIR}/arrow/util/config.h")
    file(STRINGS "${PyArrow_INCLUDE_DIR}/arrow/util/config.h" _line REGEX "define ARROW_VERSION_STRING")
    string(REGEX REPLACE ".*\"([0-9.]+).*" "\\1" PyArrow_VERSION "${_line}")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PyArrow REQUIRED_VARS PyArrow_LIBRARIES PyArrow_INCLUDE_DIR
                                  VERSION_VAR PyArrow_VERSION
                                  REASON_FAILURE_MESSAGE ".parquet files are refused by this build")
