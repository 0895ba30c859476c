# SPDX-License-Identifier: Apache-2.0
# What is installed beside the programs, and the Debian packages: deploy/build-packages.sh makes them.
include(GNUInstallDirs)
set(deploy ${PROJECT_SOURCE_DIR}/deploy)

file(READ ${deploy}/systemd/gaccd.service unit)
string(REPLACE "/usr/sbin/gaccd" "${CMAKE_INSTALL_FULL_SBINDIR}/gaccd" unit "${unit}")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/deploy/gaccd.service CONTENT "${unit}" @ONLY)
# lib, whatever LIBDIR is: where systemd looks
install(FILES ${PROJECT_BINARY_DIR}/deploy/gaccd.service DESTINATION lib/systemd/system COMPONENT gaccd)
install(FILES ${deploy}/systemd/gacc.sysusers DESTINATION lib/sysusers.d RENAME gacc.conf COMPONENT gaccd)
install(FILES ${deploy}/systemd/gaccd-launch.conf ${deploy}/systemd/gaccd-gpu.conf DESTINATION share/doc/gaccd/examples COMPONENT gaccd)
file(READ ${deploy}/man/gaccd.8 page)
string(REPLACE "/etc/gacc/" "${CMAKE_INSTALL_FULL_SYSCONFDIR}/gacc/" page "${page}")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/deploy/gaccd.8 CONTENT "${page}" @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/deploy/gaccd.8 DESTINATION ${CMAKE_INSTALL_MANDIR}/man8 COMPONENT gaccd)
# As GNUInstallDirs, for the prefix of the installation; what an administrator has changed stays.
install(CODE "
  set(etc \"${CMAKE_INSTALL_SYSCONFDIR}\")
  if(NOT IS_ABSOLUTE \"\${etc}\" AND CMAKE_INSTALL_PREFIX STREQUAL \"/usr\")
    set(etc /etc)
  elseif(NOT IS_ABSOLUTE \"\${etc}\")
    set(etc \"\${CMAKE_INSTALL_PREFIX}/\${etc}\")
  endif()
  if(NOT EXISTS \"\$ENV{DESTDIR}\${etc}/gacc/gaccd.yaml\")
    file(INSTALL \"${deploy}/gaccd.yaml\" DESTINATION \"\${etc}/gacc\")
  endif()" COMPONENT gaccd)

# The unit, the library's folder and gacc.pc are made for the prefix.
if(NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  return()
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "gacc maintainers <maintainers@gacc.invalid>" CACHE STRING "Maintainer of the packages")
set(CPACK_SET_DESTDIR ON) # for /etc
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_PRE_BUILD_SCRIPTS ${deploy}/cmake/debian-docs.cmake)
set(CPACK_GACC_DEBIAN_DIR ${deploy}/debian) # for that script

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL gaccd tools library development)
if(TARGET gacc_cuda_kernels) # there is nvcc
  list(APPEND CPACK_COMPONENTS_ALL cuda)
endif()
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SECTION science)

set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # each description has its own first line
set(CPACK_DEBIAN_GACCD_PACKAGE_NAME gaccd)
set(CPACK_DEBIAN_GACCD_DESCRIPTION "gradient accumulation daemon
Runs on every training node. It owns the gradient accumulators, the
parameters and the optimizer state of the jobs there, in shared memory
that outlives it, and steps when every rank has contributed.")
set(CPACK_DEBIAN_GACCD_PACKAGE_DEPENDS adduser)
set(CPACK_DEBIAN_GACCD_PACKAGE_RECOMMENDS "gacc-tools, systemd")

set(CPACK_DEBIAN_CUDA_PACKAGE_NAME gaccd-cuda)
set(CPACK_DEBIAN_CUDA_DESCRIPTION "NVIDIA GPUs for the gradient accumulation daemon
The arithmetic of jobs whose accumulators, parameters and optimizer state
are in a GPU's memory (device: cuda). The driver is found at run time.")
set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "gaccd (= ${PROJECT_VERSION})")

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME gacc-tools)
set(CPACK_DEBIAN_TOOLS_DESCRIPTION "command-line tools of the gradient accumulation daemon
gaccctl runs jobs, shows them, and names who is late.")
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "libgacc0 (= ${PROJECT_VERSION})")

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libgacc0)
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION "client library of the gradient accumulation daemon
With it, a trainer attaches to a job, maps its gradient buffers and the
parameters, and pushes micro-batches.")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libgacc-dev)
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "development files of the gradient accumulation daemon
Headers, pkg-config and CMake files, and the protobuf contract with its
descriptor set, for clients that do without the library.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libgacc0 (= ${PROJECT_VERSION})")

# dpkg knows these files by their names without the package's.
function(control_files component package)
  foreach(name ${ARGN})
    set(file ${PROJECT_BINARY_DIR}/deploy/${package}/${name})
    configure_file(${deploy}/debian/${package}.${name} ${file} COPYONLY)
    list(APPEND files ${file})
  endforeach()
  set(CPACK_DEBIAN_${component}_PACKAGE_CONTROL_EXTRA ${files} PARENT_SCOPE)
endfunction()
control_files(GACCD gaccd conffiles postinst prerm postrm)
control_files(LIBRARY libgacc0 triggers)

include(CPack)
