/* SPDX-License-Identifier: Apache-2.0 */
/* Passes over sums: add, scale, inspect, and the totals of a pass. Part of kernels.cu.
 *
 * A thread has four consecutive elements of a reduction block. Integers are summed in any order; squares have to be
 * summed lane by lane, in ascending order, hence through shared memory. A thread asks for all that it needs of several
 * blocks before its first store, which the compiler may not do by itself: dst might be a source. */

/* Rows are KERNEL_LANES apart, so that two blocks are in different banks. */
#define SQUARES_ROW (KERNEL_BLOCK + KERNEL_LANES)

struct tile_sums {
	alignas(16) float square[CUDA_TILE * SQUARES_ROW];
	cuda_word digest[CUDA_TILE][WARPS];
	uint32_t nonfinite[CUDA_TILE][WARPS];
};

/* This thread's part of block b of the tile. */
DEVICE void tally(struct tile_sums *sh, unsigned b, float4 x, cuda_word digest)
{
	const unsigned t = threadIdx.x;
	*(float4 *)&sh->square[b * SQUARES_ROW + 4 * t] = square4(x);
	digest = warp_sum(digest);
	const uint32_t nonfinite = warp_sum(nonfinite4(x));
	if (t % 32 == 0) {
		sh->digest[b][t / 32] = digest;
		sh->nonfinite[b][t / 32] = nonfinite;
	}
}

/* The results of the first n blocks of a tile, which begins with block `tile` of out. */
DEVICE void put_tile(const struct tile_sums *sh, const struct cuda_partials &out, uint64_t tile, unsigned n)
{
	const unsigned b = threadIdx.x / KERNEL_LANES, lane = threadIdx.x % KERNEL_LANES;
	__syncthreads();
	if (b >= CUDA_TILE)
		return;
	const float sumsq = lane_sum(sh->square + b * SQUARES_ROW, lane);
	if (lane || b >= n)
		return;
	cuda_word digest = 0;
	uint32_t nonfinite = 0;
	for (unsigned w = 0; w < WARPS; w++) {
		digest += sh->digest[b][w];
		nonfinite += sh->nonfinite[b][w];
	}
	if (out.sumsq)
		put(&out.sumsq[tile + b], (double)sumsq);
	if (out.digest)
		put(&out.digest[tile + b], digest);
	if (out.nonfinite)
		put(&out.nonfinite[tile + b], nonfinite);
}

/* ---- add ---- */

/* The sources of element `at`. */
DEVICE uint32_t sources_at(const struct cuda_add &a, uint64_t at)
{
	uint32_t low = 0, high = a.n_runs;
	while (high - low > 1) {
		const uint32_t mid = low + (high - low) / 2;
		if (a.run[mid].start <= at)
			low = mid;
		else
			high = mid;
	}
	return a.run[low].sources;
}

DEVICE float4 add4(float4 sum, float c, float4 x, uint32_t *nonfinite)
{
	const float4 p = make_float4(__fmul_rn(c, x.x), __fmul_rn(c, x.y), __fmul_rn(c, x.z), __fmul_rn(c, x.w));
	*nonfinite += nonfinite4(p);
	return make_float4(__fadd_rn(sum.x, p.x), __fadd_rn(sum.y, p.y), __fadd_rn(sum.z, p.z), __fadd_rn(sum.w, p.w));
}

/* Blocks b .. b + N - 1 of a tile. sh: NULL without norm. */
template <enum dtype G, int K, bool NORM, int N>
DEVICE void add_blocks(const struct cuda_add &a, struct tile_sums *sh, uint64_t tile, unsigned b, uint32_t *nonfinite)
{
	const uint64_t at = (tile + b) * KERNEL_BLOCK + 4 * threadIdx.x;
	float4 sum[N];
	quad<G> x[N][K] = {};
	uint32_t sources[N];
	UNROLL for (int i = 0; i < N; i++)
	{
		const uint64_t here = at + i * KERNEL_BLOCK;
		sources[i] = a.n_runs ? sources_at(a, here) : (1u << a.n_sources) - 1;
		sum[i] = a.src ? __ldcs((const float4 *)(a.src + here)) : zero4();
		UNROLL for (int j = 0; j < K; j++) if (sources[i] >> j & 1) x[i][j] = quad<G>::load(a.g[j], here);
	}
	UNROLL for (int i = 0; i < N; i++)
	{
		UNROLL for (int j = 0; j < K; j++) if (sources[i] >> j & 1) sum[i] =
			add4(sum[i], a.coef[j], x[i][j].values(), &nonfinite[j]);
		put_stream((float4 *)(a.dst + at + i * KERNEL_BLOCK), sum[i]);
	}
	if (NORM)
		UNROLL for (int i = 0; i < N; i++) tally(sh, b + i, sum[i], digest_f32(sum[i], a.keys));
}

template <int K> DEVICE void count_sources(const struct cuda_add &a, const uint32_t *nonfinite)
{
	UNROLL for (int j = 0; j < K; j++)
	{
		const uint32_t sum = warp_sum(nonfinite[j]);
		if (a.src_nonfinite && threadIdx.x % 32 == 0 && sum)
			atomicAdd(&a.src_nonfinite[j], (cuda_word)sum);
	}
}

/* Blocks of which a thread has all loads on their way at a time. */
template <int K> struct stage {
	static const int blocks = K <= 2 ? 4 : K <= 4 ? 2 : 1;
};

template <enum dtype G, int K, bool NORM> DEVICE void add_tiles(const struct cuda_add &a, struct tile_sums *sh)
{
	const uint64_t n_blocks = a.n / KERNEL_BLOCK;
	uint32_t nonfinite[K] = {};
	bool may = gate_enter(a.pass);
	for (uint64_t tile = (uint64_t)blockIdx.x * CUDA_TILE; may && tile < n_blocks;) {
		const unsigned n = n_blocks - tile < CUDA_TILE ? (unsigned)(n_blocks - tile) : CUDA_TILE;
		unsigned b = 0;
		for (; b + stage<K>::blocks <= n; b += stage<K>::blocks)
			add_blocks<G, K, NORM, stage<K>::blocks>(a, sh, tile, b, nonfinite);
		for (; b < n; b++)
			add_blocks<G, K, NORM, 1>(a, sh, tile, b, nonfinite);
		if (NORM)
			put_tile(sh, a.out, tile, n);
		tile += (uint64_t)gridDim.x * CUDA_TILE;
		if (tile < n_blocks)
			may = gate_is_open(a.pass);
	}
	count_sources<K>(a, nonfinite);
	gate_leave(a.pass, !may);
}

#define ADD(name, dtype, k)                                                                                            \
	KERNEL(add_##name##_##k, struct cuda_add)                                                                      \
	{                                                                                                              \
		add_tiles<dtype, k, false>(a, NULL);                                                                   \
	}                                                                                                              \
	KERNEL(add_##name##_##k##_norm, struct cuda_add)                                                               \
	{                                                                                                              \
		SHARED(struct tile_sums, sh);                                                                          \
		add_tiles<dtype, k, true>(a, &sh);                                                                     \
	}
#define ADDS(name, dtype) ADD(name, dtype, 1) ADD(name, dtype, 2) ADD(name, dtype, 4) ADD(name, dtype, 8)
ADDS(f32, DTYPE_F32)
ADDS(bf16, DTYPE_BF16)
ADDS(f16, DTYPE_F16)

/* ---- scale ---- */

/* A NaN stays one. */
DEVICE float clamp(float x, float limit)
{
	return x < -limit ? -limit : x > limit ? limit : x;
}

DEVICE float4 scaled4(float4 x, float scale, float limit)
{
	return make_float4(clamp(__fmul_rn(scale, x.x), limit), clamp(__fmul_rn(scale, x.y), limit),
			   clamp(__fmul_rn(scale, x.z), limit), clamp(__fmul_rn(scale, x.w), limit));
}

KERNEL(scale, struct cuda_scale)
{
	const bool may = gate_enter(a.pass);
	for (uint64_t i = global_thread(); may && i < a.n / 4; i += global_threads())
		put_stream((float4 *)a.dst + i, scaled4(__ldcs((const float4 *)a.src + i), a.scale, a.limit));
	gate_leave(a.pass, !may);
}

/* ---- inspect ---- */

DEVICE const struct cuda_span *span_of(const struct cuda_inspect &a, uint64_t block)
{
	uint64_t low = 0, high = a.n_spans;
	while (high - low > 1) {
		const uint64_t mid = low + (high - low) / 2;
		if (a.span[mid].first_block <= block)
			low = mid;
		else
			high = mid;
	}
	return &a.span[low];
}

/* x without its elements from n on. */
DEVICE float4 first_of(float4 x, uint64_t n)
{
	return make_float4(n > 0 ? x.x : 0, n > 1 ? x.y : 0, n > 2 ? x.z : 0, n > 3 ? x.w : 0);
}

/* A pair belongs to the digest if its first element is there; what is missing of it counts as zero. */
DEVICE cuda_word digest_first(quad<DTYPE_F32> x, uint64_t n, const uint32_t *keys)
{
	const uint4 k = __ldg((const uint4 *)keys + threadIdx.x);
	const float4 v = first_of(x.raw, n);
	return (n > 0 ? digest_pair(__float_as_uint(v.x), __float_as_uint(v.y), k.x, k.y) : 0) +
	       (n > 2 ? digest_pair(__float_as_uint(v.z), __float_as_uint(v.w), k.z, k.w) : 0);
}

template <enum dtype T> DEVICE cuda_word digest_first(quad<T> x, uint64_t n, const uint32_t *keys)
{
	const uint32_t low = n > 1 ? x.raw.x : x.raw.x & 0xffffu;
	const uint32_t high = n > 3 ? x.raw.y : n > 2 ? x.raw.y & 0xffffu : 0;
	return n ? digest_16(make_uint2(low, high), keys) : 0;
}

template <enum dtype T>
DEVICE void inspect_block(const struct cuda_inspect &a, struct tile_sums *sh, uint64_t tile, unsigned b)
{
	const struct cuda_span *s = span_of(a, tile + b);
	const uint64_t from = (tile + b - s->first_block) * KERNEL_BLOCK + 4 * threadIdx.x;
	const uint64_t n = from < s->count ? s->count - from : 0; /* elements from this thread's on */
	quad<T> x = {};
	if (n)
		x = quad<T>::load(a.values, s->start + from);
	tally(sh, b, first_of(x.values(), n), digest_first(x, n, a.keys));
}

template <enum dtype T> DEVICE void inspect(const struct cuda_inspect &a)
{
	SHARED(struct tile_sums, sh);
	bool may = gate_enter(a.pass);
	for (uint64_t tile = (uint64_t)blockIdx.x * CUDA_TILE; may && tile < a.n_blocks;) {
		const unsigned n = a.n_blocks - tile < CUDA_TILE ? (unsigned)(a.n_blocks - tile) : CUDA_TILE;
		for (unsigned b = 0; b < n; b++)
			inspect_block<T>(a, &sh, tile, b);
		put_tile(&sh, a.out, tile, n);
		tile += (uint64_t)gridDim.x * CUDA_TILE;
		if (tile < a.n_blocks)
			may = gate_is_open(a.pass);
	}
	gate_leave(a.pass, !may);
}
KERNEL(inspect_f32, struct cuda_inspect)
{
	inspect<DTYPE_F32>(a);
}
KERNEL(inspect_bf16, struct cuda_inspect)
{
	inspect<DTYPE_BF16>(a);
}
KERNEL(inspect_f16, struct cuda_inspect)
{
	inspect<DTYPE_F16>(a);
}

/* ---- totals ---- */

DEVICE cuda_word mix(cuda_word x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

struct totals {
	struct cuda_total of[CUDA_THREADS];
};

/* Adds the first n totals of a block in pairs, those sums in pairs, and so on: the tree of kernel_sum. */
DEVICE void add_totals(struct totals *sh, unsigned n, struct cuda_total *out)
{
	const unsigned t = threadIdx.x;
	for (unsigned by = 1; by < CUDA_THREADS; by *= 2) {
		__syncthreads();
		if (t % (2 * by) == 0 && t + by < n) {
			sh->of[t].sumsq += sh->of[t + by].sumsq;
			sh->of[t].digest += sh->of[t + by].digest;
			sh->of[t].nonfinite += sh->of[t + by].nonfinite;
		}
	}
	if (t == 0) {
		put(&out->sumsq, sh->of[0].sumsq);
		put(&out->digest, sh->of[0].digest);
		put(&out->nonfinite, sh->of[0].nonfinite);
	}
}

/* CUDA_LEAF blocks from left to right. */
DEVICE struct cuda_total leaf(const struct cuda_collect &a, uint64_t first)
{
	struct cuda_total sum = { 0, 0, 0 };
	for (uint64_t i = first; i < first + CUDA_LEAF && i < a.n; i++) {
		sum.sumsq += __ldcs(a.in.sumsq + i);
		sum.digest += mix(__ldcs(a.in.digest + i) + (i + 1) * 0x9e3779b97f4a7c15ull);
		sum.nonfinite += __ldcs(a.in.nonfinite + i);
	}
	return sum;
}

DEVICE struct cuda_total total_at(const struct cuda_collect &a, uint64_t i)
{
	return { __ldcs(&a.from[i].sumsq), __ldcs(&a.from[i].digest), __ldcs(&a.from[i].nonfinite) };
}

template <bool LEAVES> DEVICE void collect(const struct cuda_collect &a)
{
	SHARED(struct totals, sh);
	const uint64_t n = LEAVES ? (a.n + CUDA_LEAF - 1) / CUDA_LEAF : a.n;
	bool may = gate_enter(a.pass);
	for (uint64_t run = blockIdx.x; may && run * CUDA_THREADS < n; run += gridDim.x) {
		const uint64_t i = run * CUDA_THREADS + threadIdx.x, left = n - run * CUDA_THREADS;
		if (i < n)
			sh.of[threadIdx.x] = LEAVES ? leaf(a, i * CUDA_LEAF) : total_at(a, i);
		add_totals(&sh, left < CUDA_THREADS ? (unsigned)left : CUDA_THREADS, &a.out[run]);
		may = gate_is_open(a.pass);
	}
	gate_leave(a.pass, !may);
}
KERNEL(collect_blocks, struct cuda_collect)
{
	collect<true>(a);
}
KERNEL(collect_totals, struct cuda_collect)
{
	collect<false>(a);
}
