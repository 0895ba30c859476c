/* Norms of a job's tensors: who waits for them, and how they come out of the engine's control segment. */
#include "edge/live_job.h"

#include "rpc/rpc.h"

#include "gacc/v1/job.pb-c.h"

#include <math.h>
#include <stdlib.h>

bool live_await_norms(struct live_job *l, uint64_t call)
{
	uint64_t *list = realloc(l->norms_call, (l->n_norms_calls + 1) * sizeof *list);
	if (!list)
		return false;
	l->norms_call = list;
	l->norms_call[l->n_norms_calls++] = call;
	return true;
}

void live_forget_norms(struct live_job *l, uint64_t call)
{
	for (uint32_t i = 0; i < l->n_norms_calls; i++)
		if (l->norms_call[i] == call) {
			l->norms_call[i] = l->norms_call[--l->n_norms_calls];
			return;
		}
}

static struct rpc_call *next_call(struct live_job *l)
{
	struct rpc_call *call = NULL;
	while (!call && l->n_norms_calls)
		call = rpc_find(l->d->rpc, l->norms_call[--l->n_norms_calls]);
	return call;
}

void live_fail_norms(struct live_job *l, enum status st, const char *why)
{
	struct rpc_call *call;
	while ((call = next_call(l)))
		rpc_failf(call, st, "job %llu: %s", (unsigned long long)l->id, why);
}

/* The rows that the engine left with the vote for this commit; NULL: it has left none. */
static const struct tensor_norm *norms_of(struct live_job *l, const struct commit *k)
{
	struct control_state state;
	struct control_page page;
	bool corrupt;
	if (!live_control_page(l, &page) || control_state_init(&state, l->spec.ranks, l->spec.max_micro_size))
		return NULL;
	bool ok = control_page_read(&page, &state, &corrupt) && state.r.prepared_norms && state.r.window == k->window &&
		  state.r.prepared_term == k->term && state.r.prepared_attempt == k->attempt;
	control_state_fini(&state);
	return ok ? control_page_norms(&page) : NULL;
}

static void fill_norm(const struct live_job *l, const struct tensor_norm *norms, uint64_t tensor, const struct commit *k,
		      Gacc__V1__TensorNorm *out)
{
	const struct arena *a = job_arena(l->job);
	uint64_t n, row = tensor;
	if (a->tensor[row].alias >= 0)
		row = (uint64_t)a->tensor[row].alias;
	gacc__v1__tensor_norm__init(out);
	out->name = (char *)job_tensors(l->job, &n)[tensor].name;
	if (k->divisor != 0) /* else the window is empty */
		out->grad_norm = sqrt(norms[row].grad_sumsq) / (k->divisor * k->loss_scale);
	out->param_norm = sqrt(norms[row].param_sumsq);
}

void live_norms(void *ctx, const struct commit *k)
{
	struct live_job *l = ctx;
	const struct tensor_norm *norms = norms_of(l, k);
	uint64_t n = l->plan->n_tensors;
	Gacc__V1__TensorNorm *row = calloc(n, sizeof *row), **list = calloc(n, sizeof *list);
	Gacc__V1__TensorNormsResponse r = GACC__V1__TENSOR_NORMS_RESPONSE__INIT;
	struct rpc_call *call;
	if (!norms || !row || !list) {
		live_fail_norms(l, norms ? ST_NO_MEMORY : ST_ATTEMPT_FAILED,
				norms ? "no memory for the norms" : "the engine has left no norms of this window");
		goto done;
	}
	for (uint64_t i = 0; i < n; i++) {
		fill_norm(l, norms, i, k, &row[i]);
		list[i] = &row[i];
	}
	r.window = k->window;
	r.n_norms = n;
	r.norms = list;
	while ((call = next_call(l)))
		rpc_finish(call, &r.base);
done:
	free(list);
	free(row);
}
