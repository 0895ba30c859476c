/* SPDX-License-Identifier: Apache-2.0 */
/* Which processes keep a device from being free. Any thread that may block: it looks at all descriptors of all
 * processes. */
#ifndef GACC_HOST_DEVICE_HOLDERS_H
#define GACC_HOST_DEVICE_HOLDERS_H

#include <stddef.h>

/* "pid 12, 13, ..": those that have a file open whose path begins so, as far as this process may see and n has room;
 * "": none. */
void device_holders(const char *prefix, char *out, size_t n);

#endif
