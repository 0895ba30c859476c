/* SPDX-License-Identifier: Apache-2.0 */
/* A way to the engines of other parts on which every call hangs, also after an abort. One member at a time. */
#ifndef GACC_TESTS_HANGING_NET_H
#define GACC_TESTS_HANGING_NET_H

#include "engine/engine.h"

extern const struct engine_net hanging_net;

#endif
