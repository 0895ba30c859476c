/* Which ended job is forgotten when more are remembered than there is room for. Pure; any thread. */
#ifndef GACC_CONTROL_FORGET_H
#define GACC_CONTROL_FORGET_H

#include <stddef.h>
#include <stdint.h>

/* uid: the owners of all ended jobs, oldest first; n > 0; `room` for n more. The index of the oldest job of the user who has most of
 * them, of the one whose oldest is older if two have as many: so nobody's jobs push out those of one who has fewer. */
size_t forget_choose(const uint32_t *uid, size_t n, uint32_t *room);

#endif
