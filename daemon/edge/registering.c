/* A rank's tensor set: built and matched with the specification's rules, or compared with the set that the job has, in the pool.
 * Then job_register has only to take it. */
#include "edge/registering.h"

#include "edge/convert.h"
#include "rpc/pool.h"

#include "gacc/v1/gradient.pb-c.h"

#include <stdio.h>
#include <stdlib.h>

struct registering {
	struct rpc_work work;
	struct live_job *l;
	uint64_t call;
	struct session_key key;
	Gacc__V1__RegisterTensorsRequest *request;
	const struct tensor_set *known; /* the job's, when this began; NULL: it had none */
	struct tensor_set set;          /* built, when it had none */
	void *packed;                   /* likewise, for the journal */
	size_t n_packed;
	enum status status;
	char why[320];
};

static void compare(struct registering *r, const struct tensor_spec *t, uint64_t n)
{
	char text[256];
	if (!tensor_set_differs(r->known->tensor, r->known->n, t, n, text, sizeof text))
		return;
	snprintf(r->why, sizeof r->why, "rank %u: %s", r->key.rank, text);
	r->status = ST_LAYOUT_MISMATCH;
}

static void build(struct registering *r, const struct tensor_spec *t, uint64_t n)
{
	r->status = tensor_set_init(&r->set, &r->l->spec, t, n, r->why, sizeof r->why);
	if (!r->status)
		r->status = tensor_set_match(&r->set, &r->l->spec, r->why, sizeof r->why);
	if (!r->status && !(r->packed = convert_pack_tensors(t, n, &r->n_packed)))
		r->status = ST_NO_MEMORY;
}

/* Of the first set that a rank declares. */
static void keep_packed(struct registering *r)
{
	struct live_job *l = r->l;
	if (job_has_tensors(l->job) || l->tensors_packed)
		return;
	l->tensors_packed = r->packed;
	l->n_tensors_packed = r->n_packed;
	r->packed = NULL;
}

static void run(struct rpc_work *w)
{
	struct registering *r = (struct registering *)w;
	struct tensor_spec *t = NULL;
	uint64_t n = r->request->n_tensors;
	r->status = convert_tensors(r->request->tensors, n, &t, r->why, sizeof r->why);
	if (!r->status && r->known)
		compare(r, t, n);
	else if (!r->status)
		build(r, t, n);
	free(t);
	bytes_free(&r->request->base);
}

static void fail(struct registering *r, struct rpc_call *call)
{
	const char *hint = r->status == ST_LAYOUT_MISMATCH ? JOB_SAME_TENSORS :
			   r->status == ST_INVALID_ARGUMENT ? "correct the tensor set" : NULL;
	rpc_fail(call, &(struct rpc_error){ .status = r->status, .message = r->why[0] ? r->why : NULL, .hint = hint });
}

static void done(struct rpc_work *w)
{
	struct registering *r = (struct registering *)w;
	struct live_job *l = r->l;
	struct rpc_call *call = rpc_find(l->d->rpc, r->call);
	struct reply why;
	live_drop(l);
	if (!call || !l->job)
		tensor_set_fini(&r->set); /* nobody waits for it */
	else if (!job_session_ok(l->job, &r->key, &why)) /* the session's end comes before what is wrong with its tensors */
		tensor_set_fini(&r->set), reply_fail(call, &why);
	else if (r->status)
		fail(r, call);
	else
		keep_packed(r), job_register(l->job, r->call, &r->key, r->known ? NULL : &r->set, daemon_now(l->d));
	free(r->packed);
	free(r);
}

void registering_begin(struct rpc_call *call, struct live_job *l, const struct session_key *key)
{
	struct reply why;
	if (!job_session_ok(l->job, key, &why)) { /* strangers cost nothing */
		reply_fail(call, &why);
		return;
	}
	struct registering *r = calloc(1, sizeof *r);
	if (!r) {
		no_memory(call);
		return;
	}
	r->l = l;
	r->call = rpc_id(call);
	r->key = *key;
	r->known = job_tensor_set(l->job);
	r->request = (Gacc__V1__RegisterTensorsRequest *)rpc_take_request(call);
	live_hold(l);
	rpc_pool_put(rpc_server_pool(l->d->rpc), &r->work, key->uid, run, done);
}
