/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers by counter: draw i of a key depends on nothing else, so no generator's state has to survive a restart.
 * The mixer is that of splitmix64 (Steele, Lea, Flood 2014). */
#ifndef GACC_EXAMPLES_RANDOM_H
#define GACC_EXAMPLES_RANDOM_H

#include <stdint.h>

static inline uint64_t random_mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static inline uint64_t random_at(uint64_t key, uint64_t i)
{
	return random_mix(key + i * 0x9e3779b97f4a7c15u);
}

#endif
