/* SPDX-License-Identifier: Apache-2.0 */
/* Updates that a death may interrupt at any store: kernels_cuda.h has the order of stores and why it is enough. Part of
 * kernels.cu. A block works its share's units in ascending order; a thread has four elements of each. The formulas are
 * those of kernels_ref.c, operation by operation. */

enum rule { RULE_SGD, RULE_ADAM, RULE_ADAMW, RULE_LAMB, RULE_MOMENTS, RULE_NORMS };

/* What a rule writes, and therefore saves. */
template <enum rule R> struct writes {
	static const bool p = R != RULE_MOMENTS, state = R != RULE_LAMB;
};

/* Four elements. p16: what p was made from, where the values that count have 16 bits. */
struct elements {
	float4 p, m, v;
	uint2 p16;
};

/* Elements from `at` on of a range; n of them are this thread's, 0 or 4. */
struct piece {
	const struct cuda_range *range;
	uint64_t at;
	bool mine;
};

struct share_sums {
	cuda_word stamp;
	bool stamped, open[2];
	cuda_word digest[2][WARPS]; /* in turn: the last unit's are read while the next one's are written */
	uint32_t nonfinite[2][WARPS];
};

struct squares {
	alignas(16) float param[KERNEL_BLOCK], direction[KERNEL_BLOCK];
};

DEVICE uint64_t share_begin(const struct cuda_update &a, uint64_t share, uint64_t shares)
{
	return a.first + a.n * share / shares;
}

DEVICE struct piece locate(const struct cuda_update &a, uint64_t unit)
{
	uint64_t low = 0, high = a.n_ranges;
	while (high - low > 1) {
		const uint64_t mid = low + (high - low) / 2;
		if (a.range[mid].first_unit <= unit)
			low = mid;
		else
			high = mid;
	}
	const struct cuda_range *r = &a.range[low];
	const uint64_t at = (unit - r->first_unit) * KERNEL_BLOCK + 4 * threadIdx.x;
	return { r, at, at < r->count };
}

/* ---- load, save, store ---- */

DEVICE float4 widen_any(uint2 h, uint32_t dtype)
{
	return dtype == DTYPE_BF16 ? widen4<DTYPE_BF16>(h) : widen4<DTYPE_F16>(h);
}

DEVICE uint2 narrow_any(float4 x, uint32_t dtype)
{
	return dtype == DTYPE_BF16 ? narrow4<DTYPE_BF16>(x) : narrow4<DTYPE_F16>(x);
}

DEVICE void load_values(const struct piece &c, struct elements *x)
{
	const struct cuda_range *r = c.range;
	if (r->p) {
		x->p = quad<DTYPE_F32>::load(r->p, c.at).raw;
	} else {
		x->p16 = quad<DTYPE_BF16>::load(r->p16, c.at).raw;
		x->p = widen_any(x->p16, r->p16_dtype);
	}
}

DEVICE void load_state(const struct piece &c, struct elements *x)
{
	if (c.range->m)
		x->m = quad<DTYPE_F32>::load(c.range->m, c.at).raw;
	if (c.range->v)
		x->v = quad<DTYPE_F32>::load(c.range->v, c.at).raw;
}

/* Old values that an earlier life has saved. */
template <enum rule R> DEVICE void load_saved(const struct piece &c, const float *half, struct elements *x)
{
	const unsigned t = threadIdx.x;
	if (writes<R>::p && c.range->p) {
		x->p = get((const float4 *)half + t);
	} else if (writes<R>::p) {
		x->p16 = get((const uint2 *)half + t);
		x->p = widen_any(x->p16, c.range->p16_dtype);
	}
	if (writes<R>::state && c.range->m)
		x->m = get((const float4 *)(half + KERNEL_BLOCK) + t);
	if (writes<R>::state && c.range->v)
		x->v = get((const float4 *)(half + 2 * KERNEL_BLOCK) + t);
}

template <enum rule R> DEVICE void save(const struct piece &c, float *half, const struct elements &x)
{
	const unsigned t = threadIdx.x;
	if (writes<R>::p && c.range->p)
		put((float4 *)half + t, x.p);
	else if (writes<R>::p)
		put((uint2 *)half + t, x.p16);
	if (writes<R>::state && c.range->m)
		put((float4 *)(half + KERNEL_BLOCK) + t, x.m);
	if (writes<R>::state && c.range->v)
		put((float4 *)(half + 2 * KERNEL_BLOCK) + t, x.v);
}

template <enum rule R> DEVICE void store(const struct piece &c, struct elements *x)
{
	const struct cuda_range *r = c.range;
	if (writes<R>::state && r->m)
		put_stream((float4 *)(r->m + c.at), x->m);
	if (writes<R>::state && r->v)
		put_stream((float4 *)(r->v + c.at), x->v);
	if (!writes<R>::p)
		return;
	if (r->p)
		put_stream((float4 *)(r->p + c.at), x->p);
	if (!r->p16)
		return;
	x->p16 = narrow_any(x->p, r->p16_dtype);
	put_stream((uint2 *)((uint16_t *)r->p16 + c.at), x->p16);
}

/* ---- formulas ---- */

DEVICE float sgd1(const struct cuda_scalars &s, float p, float *m, bool has_m, float g)
{
	g = __fadd_rn(g, __fmul_rn(s.weight_decay, p));
	if (has_m) {
		*m = s.first ? g : __fadd_rn(__fmul_rn(s.momentum, *m), __fmul_rn(s.one_minus_dampening, g));
		g = s.nesterov ? __fadd_rn(g, __fmul_rn(s.momentum, *m)) : *m;
	}
	return __fsub_rn(p, __fmul_rn(s.lr, g));
}

DEVICE void moments1(const struct cuda_scalars &s, float *m, float *v, float g)
{
	*m = __fadd_rn(*m, __fmul_rn(s.one_minus_beta1, __fsub_rn(g, *m)));
	*v = __fadd_rn(__fmul_rn(s.beta2, *v), __fmul_rn(__fmul_rn(s.one_minus_beta2, g), g));
}

DEVICE float denominator1(const struct cuda_scalars &s, float v)
{
	return __fadd_rn(__fmul_rn(__fsqrt_rn(v), s.inv_bias2_sqrt), s.eps);
}

DEVICE float adam1(const struct cuda_scalars &s, float p, float *m, float *v, float g)
{
	moments1(s, m, v, g);
	return __fsub_rn(p, __fdiv_rn(__fmul_rn(s.step_size, *m), denominator1(s, *v)));
}

DEVICE float direction1(const struct cuda_scalars &s, float p, float m, float v)
{
	return __fadd_rn(__fdiv_rn(__fmul_rn(m, s.inv_bias1), denominator1(s, v)), __fmul_rn(s.weight_decay, p));
}

template <enum rule R>
DEVICE void update1(const struct cuda_scalars &s, const struct cuda_range *r, float *p, float *m, float *v, float sum)
{
	const float g = R == RULE_LAMB ? 0 : clamp(__fmul_rn(s.scale, sum), s.limit);
	if (R == RULE_SGD)
		*p = sgd1(s, *p, m, r->m != NULL, g);
	if (R == RULE_ADAM)
		*p = adam1(s, *p, m, v, __fadd_rn(g, __fmul_rn(s.weight_decay, *p)));
	if (R == RULE_ADAMW)
		*p = adam1(s, __fmul_rn(*p, s.decay), m, v, g);
	if (R == RULE_MOMENTS)
		moments1(s, m, v, g);
	if (R == RULE_LAMB)
		*p = __fsub_rn(*p, __fmul_rn(r->lr, direction1(s, *p, *m, *v)));
}

template <enum rule R>
DEVICE void update4(const struct cuda_scalars &s, const struct cuda_range *r, struct elements *x, float4 g)
{
	update1<R>(s, r, &x->p.x, &x->m.x, &x->v.x, g.x);
	update1<R>(s, r, &x->p.y, &x->m.y, &x->v.y, g.y);
	update1<R>(s, r, &x->p.z, &x->m.z, &x->v.z, g.z);
	update1<R>(s, r, &x->p.w, &x->m.w, &x->v.w, g.w);
}

/* ---- results of a unit ---- */

/* Whether an element is inf or NaN in one of its copies, or in v. From `overflow` on, as bits, p is in its copy. */
DEVICE uint32_t lost1(float p, float v, uint32_t overflow)
{
	return (__float_as_uint(p) & 0x7fffffffu) >= overflow || is_nonfinite(v);
}

DEVICE uint32_t lost4(const struct cuda_range *r, const struct elements &x)
{
	const uint32_t overflow = !r->p16 ? 0x7f800000u : r->p16_dtype == DTYPE_BF16 ? 0x7f7f8000u : 0x477ff000u;
	const float4 v = r->v ? x.v : zero4();
	return lost1(x.p.x, v.x, overflow) + lost1(x.p.y, v.y, overflow) + lost1(x.p.z, v.z, overflow) +
	       lost1(x.p.w, v.w, overflow);
}

/* Of the values that count, as they are now. Nothing is lost in a frozen range: nobody has written it. */
DEVICE void tally_unit(const struct cuda_update &a, const struct piece &c, struct share_sums *sh, unsigned turn,
		       const struct elements &x)
{
	cuda_word digest = 0;
	uint32_t nonfinite = 0;
	if (c.mine && a.digest)
		digest = c.range->p ? digest_f32(x.p, a.keys) : digest_16(x.p16, a.keys);
	if (c.mine && !c.range->frozen)
		nonfinite = lost4(c.range, x);
	digest = warp_sum(digest);
	nonfinite = warp_sum(nonfinite);
	if (threadIdx.x % 32 == 0) {
		sh->digest[turn][threadIdx.x / 32] = digest;
		sh->nonfinite[turn][threadIdx.x / 32] = nonfinite;
	}
}

/* One thread. */
DEVICE void put_unit(const struct cuda_update &a, const struct share_sums *sh, unsigned turn, uint64_t unit)
{
	cuda_word digest = 0;
	uint32_t nonfinite = 0;
	for (unsigned w = 0; w < WARPS; w++) {
		digest += sh->digest[turn][w];
		nonfinite += sh->nonfinite[turn][w];
	}
	if (a.digest)
		put(&a.digest[unit - a.first], digest);
	if (a.nonfinite)
		put(&a.nonfinite[unit - a.first], nonfinite);
}

DEVICE void tally_lamb(const struct cuda_scalars &s, const struct piece &c, struct squares *sq,
		       const struct elements &x)
{
	const float4 p = c.mine ? x.p : zero4();
	float4 d = zero4();
	if (c.mine)
		d = make_float4(direction1(s, p.x, x.m.x, x.v.x), direction1(s, p.y, x.m.y, x.v.y),
				direction1(s, p.z, x.m.z, x.v.z), direction1(s, p.w, x.m.w, x.v.w));
	*(float4 *)&sq->param[4 * threadIdx.x] = square4(p);
	*(float4 *)&sq->direction[4 * threadIdx.x] = square4(d);
}

/* The first warp. */
DEVICE void put_lamb(const struct cuda_update &a, const struct squares *sq, uint64_t unit)
{
	const unsigned lane = threadIdx.x % KERNEL_LANES;
	const bool param = threadIdx.x < KERNEL_LANES;
	const float sum = lane_sum(param ? sq->param : sq->direction, lane);
	if (lane == 0)
		put(&(param ? a.param : a.direction)[unit - a.first], (double)sum);
}

/* ---- a share ---- */

/* One thread. False: somebody else has moved it. */
DEVICE bool move_stamp(const struct cuda_update &a, struct share_sums *sh, uint64_t unit, unsigned held)
{
	const cuda_word next = CUDA_STAMP(a.window, a.pass.generation, a.base + unit, held);
	const bool moved = atomicCAS(&a.stamp[blockIdx.x], sh->stamp, next) == sh->stamp;
	sh->stamp = next;
	return moved;
}

/* Where the share stands; false: the stamp is none of this window, phase and share. */
DEVICE bool find_stamp(const struct cuda_update &a, struct share_sums *sh, uint64_t *unit, bool *held)
{
	if (threadIdx.x == 0)
		sh->stamp = look(&a.stamp[blockIdx.x]);
	__syncthreads();
	const cuda_word stamp = sh->stamp;
	const uint64_t number = CUDA_STAMP_UNIT(stamp), first = a.base + share_begin(a, blockIdx.x, gridDim.x);
	const uint64_t end = a.base + share_begin(a, blockIdx.x + 1, gridDim.x);
	*unit = number - a.base;
	*held = CUDA_STAMP_HELD(stamp);
	return CUDA_STAMP_WINDOW(stamp) == (a.window & 0xffff) && number >= first && number + *held <= end;
}

/* Loads a unit and makes it safe to overwrite. False: it is not this block's any more. */
template <enum rule R>
DEVICE bool take_unit(const struct cuda_update &a, const struct piece &c, struct share_sums *sh, uint64_t unit,
		      bool held, struct elements *x, float4 *g)
{
	float *half = a.undo + (2 * (uint64_t)blockIdx.x + ((a.base + unit) & 1)) * CUDA_UNDO_HALF;
	if (c.mine) {
		load_values(c, x);
		load_state(c, x);
		if (R != RULE_LAMB)
			*g = quad<DTYPE_F32>::load(c.range->g, c.at).raw;
		if (held)
			load_saved<R>(c, half, x);
		else
			save<R>(c, half, *x);
	}
	fence_device(); /* also of what was overwritten in the unit before */
	__syncthreads();
	if (threadIdx.x == 0) {
		sh->stamped = move_stamp(a, sh, unit, 1);
		fence_device();
	}
	__syncthreads();
	return sh->stamped;
}

/* Returns false when the block has to leave. The squares of a unit are read behind its last barrier, and written again
 * two barriers later: a frozen unit has none of the two, and no squares. */
template <enum rule R>
DEVICE bool update_unit(const struct cuda_update &a, struct share_sums *sh, struct squares *sq, uint64_t unit,
			bool held)
{
	const struct piece c = locate(a, unit);
	const struct cuda_scalars &s = a.scalars[c.range->scalars];
	const unsigned turn = unit & 1;
	struct elements x = {};
	float4 g = zero4();
	if (c.range->frozen) {
		if (c.mine)
			load_values(c, &x);
	} else {
		if (!take_unit<R>(a, c, sh, unit, held, &x, &g))
			return false;
		if (c.mine) {
			update4<R>(s, c.range, &x, g);
			store<R>(c, &x);
		}
	}
	if (R != RULE_MOMENTS)
		tally_unit(a, c, sh, turn, x);
	else if (!c.range->frozen)
		tally_lamb(s, c, sq, x);
	if (threadIdx.x == 0)
		sh->open[turn] = look(&a.pass.gate->generation) == a.pass.generation;
	__syncthreads();
	if (R == RULE_MOMENTS && !c.range->frozen && threadIdx.x < 32)
		put_lamb(a, sq, unit);
	if (R != RULE_MOMENTS && threadIdx.x == 0)
		put_unit(a, sh, turn, unit);
	return sh->open[turn];
}

template <enum rule R> DEVICE void update_share(const struct cuda_update &a, struct squares *sq)
{
	SHARED(struct share_sums, sh);
	const uint64_t end = share_begin(a, blockIdx.x + 1, gridDim.x);
	uint64_t unit;
	bool held;
	bool may = gate_enter(a.pass);
	may = find_stamp(a, &sh, &unit, &held) && may;
	for (; may && unit < end; unit++) {
		may = update_unit<R>(a, &sh, sq, unit, held);
		held = false;
	}
	fence_device();
	__syncthreads();
	if (threadIdx.x == 0 && may)
		move_stamp(a, &sh, end, 0);
	gate_leave(a.pass, !may);
}

KERNEL(sgd, struct cuda_update)
{
	update_share<RULE_SGD>(a, NULL);
}
KERNEL(adam, struct cuda_update)
{
	update_share<RULE_ADAM>(a, NULL);
}
KERNEL(adamw, struct cuda_update)
{
	update_share<RULE_ADAMW>(a, NULL);
}
KERNEL(lamb, struct cuda_update)
{
	update_share<RULE_LAMB>(a, NULL);
}
KERNEL(lamb_moments, struct cuda_update)
{
	SHARED(struct squares, sq);
	update_share<RULE_MOMENTS>(a, &sq);
}

KERNEL(lamb_norms, struct cuda_update)
{
	SHARED(struct squares, sq);
	bool may = gate_enter(a.pass);
	for (uint64_t unit = a.first + blockIdx.x; may && unit < a.first + a.n; unit += gridDim.x) {
		const struct piece c = locate(a, unit);
		struct elements x = {};
		if (c.mine) {
			load_values(c, &x);
			load_state(c, &x);
		}
		tally_lamb(a.scalars[c.range->scalars], c, &sq, x);
		__syncthreads();
		if (threadIdx.x < 32)
			put_lamb(a, &sq, unit);
		may = gate_is_open(a.pass);
	}
	gate_leave(a.pass, !may);
}

/* A second phase begins where a share is still in the first; a first phase begins in any case. */
KERNEL(update_begin, struct cuda_update)
{
	const bool may = gate_enter(a.pass);
	for (uint64_t s = global_thread(); may && s < a.n_shares; s += global_threads()) {
		const cuda_word old = look(&a.stamp[s]);
		const bool begun =
			a.base && CUDA_STAMP_WINDOW(old) == (a.window & 0xffff) && CUDA_STAMP_UNIT(old) >= a.base;
		const uint64_t unit = a.base + share_begin(a, s, a.n_shares);
		if (!begun)
			atomicCAS(&a.stamp[s], old, CUDA_STAMP(a.window, a.pass.generation, unit, 0));
	}
	gate_leave(a.pass, !may);
}
