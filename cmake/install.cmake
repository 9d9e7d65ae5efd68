# The installed package: headers, library, find_package(onepass) and pkg-config files, command line if built, kernel
# bundle if made (make bundle).
include(CMakePackageConfigHelpers)

set(onepass_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/onepass)
set(onepass_pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(TARGETS onepass EXPORT onepassTargets)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/onepass DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET onepass_cli)
  install(TARGETS onepass_cli)
endif()
install(FILES ${CMAKE_BINARY_DIR}/share/onepass/onepass_kernels.bundle
  DESTINATION ${CMAKE_INSTALL_DATADIR}/onepass OPTIONAL)

install(EXPORT onepassTargets NAMESPACE onepass:: DESTINATION ${onepass_package_dir})
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/onepassConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/onepassConfig.cmake
  INSTALL_DESTINATION ${onepass_package_dir} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor release may change the interface.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/onepassConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/onepassConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/onepassConfigVersion.cmake
  DESTINATION ${onepass_package_dir})

# Relative to the .pc file, because the prefix may change at install time.
file(RELATIVE_PATH onepass_pc_prefix /prefix/${onepass_pc_dir} /prefix)
configure_file(${CMAKE_CURRENT_LIST_DIR}/onepass.pc.in ${CMAKE_CURRENT_BINARY_DIR}/onepass.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/onepass.pc DESTINATION ${onepass_pc_dir})
