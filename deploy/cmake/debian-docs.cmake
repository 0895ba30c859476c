# SPDX-License-Identifier: Apache-2.0
# Run by CPack before it makes the packages: what Debian's policy wants in each, and only there.
set(packages gaccd:gaccd tools:gacc-tools library:libgacc0 development:libgacc-dev)
if(EXISTS ${CPACK_TEMPORARY_DIRECTORY}/cuda) # there was nvcc
  list(APPEND packages cuda:gaccd-cuda)
endif()
foreach(pair ${packages})
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 component)
  list(GET pair 1 package)
  set(root ${CPACK_TEMPORARY_DIRECTORY}/${component})
  set(doc ${root}/usr/share/doc/${package})
  file(COPY ${CPACK_GACC_DEBIAN_DIR}/copyright ${CPACK_GACC_DEBIAN_DIR}/changelog DESTINATION ${doc}
       FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  if(EXISTS ${CPACK_GACC_DEBIAN_DIR}/${package}.overrides)
    set(overrides ${root}/usr/share/lintian/overrides)
    file(COPY ${CPACK_GACC_DEBIAN_DIR}/${package}.overrides DESTINATION ${overrides})
    file(RENAME ${overrides}/${package}.overrides ${overrides}/${package})
  endif()
  file(GLOB_RECURSE pages ${root}/usr/share/man/*)
  execute_process(COMMAND gzip -9n ${doc}/changelog ${pages} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
