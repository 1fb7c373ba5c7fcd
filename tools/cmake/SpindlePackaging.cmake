# Install rules and CPack: a DEB that depends on Debian's libraries, and a TGZ that carries the ones it needs
# (tools/packaging/tarball.sh), so that it also runs on other glibc distributions.
include(GNUInstallDirs)

if(TARGET spindle)
  install(TARGETS spindle RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT server)
endif()
install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT server)
install(FILES docs/http-api.md docs/configuration.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs COMPONENT server)
# Debian's name for the licences of what the binary contains; collected when something is installed or packed.
install(CODE "execute_process(
  COMMAND \"${CMAKE_COMMAND}\" -E env \"CARGO=${SPINDLE_CARGO}\" \"${PROJECT_SOURCE_DIR}/tools/packaging/licences.sh\"
          \"${PROJECT_BINARY_DIR}/copyright\"
  COMMAND_ERROR_IS_FATAL ANY)" COMPONENT server)
install(FILES "${PROJECT_BINARY_DIR}/copyright" DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT server)
install(DIRECTORY configs/serve/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples COMPONENT server)
install(DIRECTORY configs/sparse/ DESTINATION ${CMAKE_INSTALL_DATADIR}/spindle/sparse COMPONENT server)
install(FILES tools/packaging/spindle.service DESTINATION lib/systemd/system COMPONENT server)

set(CPACK_PACKAGE_NAME spindle)
set(CPACK_PACKAGE_VENDOR "Spindle developers")
set(CPACK_PACKAGE_CONTACT "Spindle developers <dev@spindle.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Long-context LLM inference server with an OpenAI-compatible API")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL OFF)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
include(CPack)
