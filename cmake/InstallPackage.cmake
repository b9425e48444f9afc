# cmake --install build/release --prefix X: static libraries, headers, the package config and the binary. An outside
# project says find_package(stepc) and links stepc::engine, or any folder by its name (tests/package does both).
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

get_property(STEPC_FOLDERS GLOBAL PROPERTY STEPC_FOLDERS)
list(TRANSFORM STEPC_FOLDERS PREPEND stepc_ OUTPUT_VARIABLE _libraries)
install(TARGETS ${_libraries} EXPORT stepcTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} ${CMAKE_INSTALL_INCLUDEDIR}/stepc)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/src/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/stepc FILES_MATCHING PATTERN "*.h")
if(TARGET stepc)
  install(TARGETS stepc RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(TARGET stepc_cuda)  # opened at run time
  install(TARGETS stepc_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

set(_package ${CMAKE_INSTALL_LIBDIR}/cmake/stepc)
install(EXPORT stepcTargets NAMESPACE stepc:: DESTINATION ${_package})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/stepcConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/stepcConfig.cmake INSTALL_DESTINATION ${_package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/stepcConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/stepcConfig.cmake ${PROJECT_BINARY_DIR}/stepcConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindTorchWheel.cmake DESTINATION ${_package})
