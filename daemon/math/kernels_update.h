/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer updates of the fast kernels. Part of kernels_body.h, which includes it once for every instruction set.
 *
 * A unit is loaded, saved (struct kernel_undo), computed and stored before the next begins. The formulas stand here a
 * second time, in vectors: kernels_ref.c says why.
 */
enum rule { RULE_SGD, RULE_ADAM, RULE_ADAMW, RULE_LAMB };

INLINE kernel_update_fn *reference_update(enum rule rule)
{
	return rule == RULE_SGD	    ? kernels_reference.sgd
	       : rule == RULE_ADAM  ? kernels_reference.adam
	       : rule == RULE_ADAMW ? kernels_reference.adamw
				    : kernels_reference.lamb;
}

/* One unit of p, m and v in registers, or where the compiler keeps them. */
struct unit {
	vf p[UNIT_ROWS], m[UNIT_ROWS], v[UNIT_ROWS];
};

/* What is compiled anew for each case: the rule, where the parameters lie and in which dtype, which state there is. */
struct shape {
	enum rule rule;
	enum dtype t; /* of the parameters that count: f32, or those of p16 */
	bool has_m, has_v;
};

INLINE char *values_of(const struct kernel_params *a, enum dtype t)
{
	return t == DTYPE_F32 ? (char *)a->p : a->p16;
}

INLINE void load_unit(struct shape is, const struct kernel_params *a, size_t i, struct unit *x)
{
	const char *p = values_of(a, is.t) + i * dtype_size(is.t);
	prefetch(p, UNIT * dtype_size(is.t));
	UNROLL for (int r = 0; r < UNIT_ROWS; r++) x->p[r] = load_row(p + (size_t)r * ROW * dtype_size(is.t), is.t);
	if (is.has_m) {
		prefetch(a->m + i, UNIT * sizeof(*a->m));
		UNROLL for (int r = 0; r < UNIT_ROWS; r++) x->m[r] = v_load(a->m + i + (size_t)r * ROW);
	}
	if (is.has_v) {
		prefetch(a->v + i, UNIT * sizeof(*a->v));
		UNROLL for (int r = 0; r < UNIT_ROWS; r++) x->v[r] = v_load(a->v + i + (size_t)r * ROW);
	}
}

INLINE void store_rows(float *to, const vf x[UNIT_ROWS])
{
	UNROLL for (int r = 0; r < UNIT_ROWS; r++) v_store(to + (size_t)r * ROW, x[r]);
}

INLINE void store_values(void *to, enum dtype t, const vf x[UNIT_ROWS])
{
	if (t == DTYPE_F32) {
		store_rows(to, x);
		return;
	}
	UNROLL for (int r = 0; r < UNIT_ROWS; r++)
	{
		vu16 h = to_row16(t, x[r]);
		memcpy((uint16_t *)to + (size_t)r * ROW, &h, sizeof(h));
	}
}

/* Saves what load_unit has loaded as unit k of the call. 16-bit values are copied, so that NaNs come back the same. */
INLINE void save_unit(struct shape is, const struct kernel_undo *undo, uint64_t k, const struct unit *x, const char *p)
{
	const uint64_t number = undo->first + k;
	if (is.t == DTYPE_F32)
		store_rows((float *)undo_place(undo->area, number, 0), x->p);
	else
		memcpy(undo_place(undo->area, number, 0), p, UNIT * sizeof(uint16_t));
	if (is.has_m)
		store_rows((float *)undo_place(undo->area, number, 1), x->m);
	if (is.has_v)
		store_rows((float *)undo_place(undo->area, number, 2), x->v);
	undo_hold(undo, k);
}

INLINE vf sgd_row(bool has_m, vf p, vf *m, vf g, const struct kernel_update *u)
{
	g += u->weight_decay * p;
	if (has_m) {
		*m = u->first ? g : u->momentum * *m + u->one_minus_dampening * g;
		g = u->nesterov ? g + u->momentum * *m : *m;
	}
	return p - u->lr * g;
}

INLINE void moments_row(vf *m, vf *v, vf g, const struct kernel_update *u)
{
	*m = *m + u->one_minus_beta1 * (g - *m);
	*v = u->beta2 * *v + u->one_minus_beta2 * g * g;
}

INLINE vf adam_row(vf p, vf *m, vf *v, vf g, const struct kernel_update *u)
{
	moments_row(m, v, g, u);
	return p - u->step_size * *m / (v_sqrt(*v) * u->inv_bias2_sqrt + u->eps);
}

INLINE vf lamb_row(vf p, vf m, vf v, const struct kernel_update *u)
{
	return m * u->inv_bias1 / (v_sqrt(v) * u->inv_bias2_sqrt + u->eps) + u->weight_decay * p;
}

INLINE vf update_row(struct shape is, vf p, vf *m, vf *v, vf g, const struct kernel_update *u)
{
	switch (is.rule) {
	case RULE_SGD:
		return sgd_row(is.has_m, p, m, g, u);
	case RULE_ADAM:
		return adam_row(p, m, v, g + u->weight_decay * p, u);
	case RULE_ADAMW:
		return adam_row(p * u->decay, m, v, g, u);
	default:
		return p - u->lr * lamb_row(p, *m, *v, u);
	}
}

/* Elements i .. i + UNIT - 1; leaves the new ones in x->p. */
INLINE void update_unit(struct shape is, const struct kernel_params *a, const float *g, size_t i,
			const struct kernel_update *u, const struct kernel_undo *undo, float limit, struct unit *x)
{
	char *p = values_of(a, is.t) + i * dtype_size(is.t);
	load_unit(is, a, i, x);
	if (undo)
		save_unit(is, undo, i / UNIT, x, p);
	if (is.rule != RULE_LAMB)
		prefetch(g + i, UNIT * sizeof(*g));
	UNROLL for (int r = 0; r < UNIT_ROWS; r++)
	{
		vf gradient =
			is.rule == RULE_LAMB ? (vf){ 0 } : v_gradient(v_load(g + i + (size_t)r * ROW), u->scale, limit);
		x->p[r] = update_row(is, x->p[r], &x->m[r], &x->v[r], gradient, u);
	}
	store_values(p, is.t, x->p);
	if (is.has_m && is.rule != RULE_LAMB)
		store_rows(a->m + i, x->m);
	if (is.has_v && is.rule != RULE_LAMB)
		store_rows(a->v + i, x->v);
	for (int r = 0; is.t == DTYPE_F32 && a->p16 && r < UNIT_ROWS; r++)
		v_stream16((uint16_t *)a->p16 + i + (size_t)r * ROW, to_row16(a->p16_dtype, x->p[r]));
}

/* Parameters from element i on, a multiple of UNIT, and where a call that begins there saves. */
static struct kernel_params params_from(const struct kernel_params *a, size_t i)
{
	return (struct kernel_params){ .p = a->p ? a->p + i : NULL,
				       .p16 = a->p16 ? (uint16_t *)a->p16 + i : NULL,
				       .p16_dtype = a->p16_dtype,
				       .m = a->m ? a->m + i : NULL,
				       .v = a->v ? a->v + i : NULL };
}

static struct kernel_undo undo_from(const struct kernel_undo *undo, size_t i)
{
	return (struct kernel_undo){ undo->area, undo->stamp, undo->first + i / UNIT };
}

/* The last n < UNIT elements of a range, from element i on; g belongs to element i. How many are not finite. */
static uint32_t update_rest(enum rule rule, const struct kernel_params *a, const float *g, size_t i, size_t n,
			    const struct kernel_update *u, const struct kernel_undo *undo)
{
	const struct kernel_params rest = params_from(a, i);
	const struct kernel_undo rest_undo = undo ? undo_from(undo, i) : (struct kernel_undo){ NULL, NULL, 0 };
	uint32_t lost;
	reference_update(rule)(&rest, g, DTYPE_F32, n, u, undo ? &rest_undo : NULL,
			       &(struct kernel_partials){ .nonfinite = &lost });
	return lost;
}

/* Adds how many elements of a unit have a p (from `overflow` on, as bits without the sign) or a v that is not
 * finite. */
INLINE vi count_lost(struct shape is, vi lost, const struct unit *x, int32_t overflow)
{
	UNROLL for (int r = 0; r < UNIT_ROWS; r++)
	{
		vi bad = (vi)((vi)((vu)x->p[r] & 0x7fffffff) >= overflow);
		if (is.has_v)
			bad |= v_nonfinite(x->v[r]);
		lost -= bad;
	}
	return lost;
}

INLINE void update_range(struct shape is, const struct kernel_params *a, const float *g, size_t n,
			 const struct kernel_update *u_at, const struct kernel_undo *undo,
			 const struct kernel_partials *wanted)
{
	const struct kernel_partials out = { .digest = is.t == DTYPE_F32 ? wanted->digest : NULL };
	const struct kernel_update u = *u_at; /* a copy that no store can alias */
	const int32_t overflow = (int32_t)overflow_bits(a->p16 ? a->p16_dtype : DTYPE_F32);
	float limit = u.clip_value > 0 ? u.clip_value : __builtin_inff();
	for (size_t start = 0; start < n; start += KERNEL_BLOCK) {
		struct tally tally = { 0 };
		vi lost = { 0 };
		uint32_t n_lost = 0;
		size_t end = start + min_size(n - start, KERNEL_BLOCK), i = start;
		for (; end - i >= UNIT; i += UNIT) {
			struct unit x;
			update_unit(is, a, g, i, &u, undo, limit, &x);
			tally_unit(&tally, x.p, i - start, &out);
			lost = count_lost(is, lost, &x, overflow);
		}
		if (i < end)
			n_lost = update_rest(is.rule, a, g ? g + i : NULL, i, end - i, u_at, undo);
		if (i < end && is.t == DTYPE_F32)
			tally = tally_rest(tally, a->p + i, end - i, i - start, &out);
		tally_finish(&tally, start / KERNEL_BLOCK, &out);
		if (wanted->digest && is.t != DTYPE_F32)
			wanted->digest[start / KERNEL_BLOCK] = digest16((const uint16_t *)a->p16 + start, end - start);
		if (wanted->nonfinite)
			wanted->nonfinite[start / KERNEL_BLOCK] = add_lanes(lost) + n_lost;
	}
	if (a->p16)
		_mm_sfence();
}

INLINE void update(enum rule rule, const struct kernel_params *a, const void *g, enum dtype acc_dtype, size_t n,
		   const struct kernel_update *u, const struct kernel_undo *undo, const struct kernel_partials *out)
{
	if (!out)
		out = &no_partials;
	bool has_m = rule != RULE_SGD || a->m, has_v = rule != RULE_SGD;
	if (acc_dtype == DTYPE_F64)
		reference_update(rule)(a, g, acc_dtype, n, u, undo, out);
	else if (a->p && has_m)
		update_range((struct shape){ rule, DTYPE_F32, true, has_v }, a, g, n, u, undo, out);
	else if (a->p)
		update_range((struct shape){ rule, DTYPE_F32, false, has_v }, a, g, n, u, undo, out);
	else if (a->p16_dtype == DTYPE_BF16 && has_m)
		update_range((struct shape){ rule, DTYPE_BF16, true, has_v }, a, g, n, u, undo, out);
	else if (a->p16_dtype == DTYPE_BF16)
		update_range((struct shape){ rule, DTYPE_BF16, false, has_v }, a, g, n, u, undo, out);
	else if (has_m)
		update_range((struct shape){ rule, DTYPE_F16, true, has_v }, a, g, n, u, undo, out);
	else
		update_range((struct shape){ rule, DTYPE_F16, false, has_v }, a, g, n, u, undo, out);
}

static void fast_sgd(const struct kernel_params *a, const void *g, enum dtype acc_dtype, size_t n,
		     const struct kernel_update *u, const struct kernel_undo *undo, const struct kernel_partials *out)
{
	update(RULE_SGD, a, g, acc_dtype, n, u, undo, out);
}

static void fast_adam(const struct kernel_params *a, const void *g, enum dtype acc_dtype, size_t n,
		      const struct kernel_update *u, const struct kernel_undo *undo, const struct kernel_partials *out)
{
	update(RULE_ADAM, a, g, acc_dtype, n, u, undo, out);
}

static void fast_adamw(const struct kernel_params *a, const void *g, enum dtype acc_dtype, size_t n,
		       const struct kernel_update *u, const struct kernel_undo *undo, const struct kernel_partials *out)
{
	update(RULE_ADAMW, a, g, acc_dtype, n, u, undo, out);
}

static void fast_lamb(const struct kernel_params *a, const void *g, enum dtype acc_dtype, size_t n,
		      const struct kernel_update *u, const struct kernel_undo *undo, const struct kernel_partials *out)
{
	update(RULE_LAMB, a, NULL, DTYPE_F32, n, u, undo, out);
}

/* ---- LAMB, first phase ---- */

/* A block's parameters and directions, of which only sums of squares are wanted. */
struct lamb_tally {
	struct tally param, direction;
};

static const struct kernel_partials only_sumsq = { .sumsq = (double[1]){ 0 } };

INLINE void lamb_directions(const struct unit *x, const struct kernel_update *u, vf out[UNIT_ROWS])
{
	UNROLL for (int r = 0; r < UNIT_ROWS; r++) out[r] = lamb_row(x->p[r], x->m[r], x->v[r], u);
}

/* Elements i .. i + UNIT - 1 of a range, of the block that began `at` elements before. */
INLINE void lamb_unit(struct shape is, const struct kernel_params *a, const float *g, size_t i, size_t at,
		      const struct kernel_update *u, const struct kernel_undo *undo, float limit,
		      struct lamb_tally *tally)
{
	struct unit x;
	vf direction[UNIT_ROWS];
	load_unit(is, a, i, &x);
	if (g) {
		if (undo)
			save_unit(is, undo, i / UNIT, &x, values_of(a, is.t) + i * dtype_size(is.t));
		prefetch(g + i, UNIT * sizeof(*g));
		UNROLL for (int r = 0; r < UNIT_ROWS; r++)
		{
			vf gradient = v_gradient(v_load(g + i + (size_t)r * ROW), u->scale, limit);
			moments_row(&x.m[r], &x.v[r], gradient, u);
		}
		store_rows(a->m + i, x.m);
		store_rows(a->v + i, x.v);
	}
	lamb_directions(&x, u, direction);
	tally_unit(&tally->param, x.p, at, &only_sumsq);
	tally_unit(&tally->direction, direction, at, &only_sumsq);
}

/* The last n < UNIT elements, whose moments are done: the unit that they begin, padded. */
static void lamb_tally_rest(const struct kernel_params *a, size_t n, size_t at, const struct kernel_update *u,
			    struct lamb_tally *tally)
{
	struct unit x = { 0 };
	vf direction[UNIT_ROWS];
	kernels_reference.to_f32((float *)x.p, a->p ? (const void *)a->p : a->p16, a->p ? DTYPE_F32 : a->p16_dtype, n);
	memcpy(x.m, a->m, n * sizeof(*a->m));
	memcpy(x.v, a->v, n * sizeof(*a->v));
	lamb_directions(&x, u, direction);
	tally->param = tally_rest(tally->param, (const float *)x.p, n, at, &only_sumsq);
	tally->direction = tally_rest(tally->direction, (const float *)direction, n, at, &only_sumsq);
}

static void lamb_rest(const struct kernel_params *a, const float *g, size_t i, size_t n, size_t at,
		      const struct kernel_update *u, const struct kernel_undo *undo, struct lamb_tally *tally)
{
	const struct kernel_params rest = params_from(a, i);
	const struct kernel_undo rest_undo = undo ? undo_from(undo, i) : (struct kernel_undo){ NULL, NULL, 0 };
	double unused[2];
	if (g)
		kernels_reference.lamb_moments(&rest, g + i, DTYPE_F32, n, u, undo ? &rest_undo : NULL,
					       &(struct kernel_lamb_norms){ unused, unused + 1 });
	lamb_tally_rest(&rest, n, at, u, tally);
}

INLINE void lamb_range(enum dtype t, const struct kernel_params *a, const float *g, size_t n,
		       const struct kernel_update *u_at, const struct kernel_undo *undo,
		       const struct kernel_lamb_norms *out)
{
	const struct shape is = { RULE_LAMB, t, true, true };
	const struct kernel_update u = *u_at;
	float limit = u.clip_value > 0 ? u.clip_value : __builtin_inff();
	for (size_t start = 0; start < n; start += KERNEL_BLOCK) {
		struct lamb_tally tally = { .param = { .nonfinite = { 0 } } };
		size_t end = start + min_size(n - start, KERNEL_BLOCK), i = start;
		for (; end - i >= UNIT; i += UNIT)
			lamb_unit(is, a, g, i, i - start, &u, undo, limit, &tally);
		if (i < end)
			lamb_rest(a, g, i, end - i, i - start, u_at, undo, &tally);
		tally_finish(&tally.param, start / KERNEL_BLOCK, &(struct kernel_partials){ .sumsq = out->param });
		tally_finish(&tally.direction, start / KERNEL_BLOCK,
			     &(struct kernel_partials){ .sumsq = out->direction });
	}
}

static void fast_lamb_moments(const struct kernel_params *a, const void *g, enum dtype acc_dtype, size_t n,
			      const struct kernel_update *u, const struct kernel_undo *undo,
			      const struct kernel_lamb_norms *out)
{
	if (g && acc_dtype == DTYPE_F64)
		kernels_reference.lamb_moments(a, g, acc_dtype, n, u, undo, out);
	else if (a->p)
		lamb_range(DTYPE_F32, a, g, n, u, undo, out);
	else if (a->p16_dtype == DTYPE_BF16)
		lamb_range(DTYPE_BF16, a, g, n, u, undo, out);
	else
		lamb_range(DTYPE_F16, a, g, n, u, undo, out);
}
