/* SPDX-License-Identifier: Apache-2.0 */
/* A job that this gaccd coordinates: its specification, its coordinator, what is shown of it, who watches it. What this
 * node has of the job is its part (runtime/part.h). Private to the edge.
 *
 * Loop thread. Here is what all files see of a job; what is done with it is in the headers of the files that do it.
 */
#ifndef GACC_EDGE_HOSTED_H
#define GACC_EDGE_HOSTED_H

#include "cluster/part_view_message.h"
#include "control/coordinator.h"
#include "control/exchanges.h"
#include "edge/daemon.h"
#include "edge/session_id.h"
#include "runtime/calls.h"
#include "runtime/events.h"
#include "runtime/part.h"
#include "runtime/rate.h"
#include "runtime/saved_list.h"
#include "runtime/specification.h"

#define HOSTED_EVENTS 256

struct Gacc__V1__Job;

struct hosted_window;
struct part_event;
struct part_restore;
struct decided;
struct scalars;

#define RANK_NONE UINT32_MAX

/* What the placements of all parts of a job share. The last windows and the checkpoint are only there until the nodes
 * have them. */
struct hosted_place {
	enum status refused;   /* by the first node that has refused; ST_OK: none has */
	uint32_t refused_part; /* which part it has refused, */
	char *why;	       /* and why */
	uint64_t need;	       /* bytes of memory of all parts here, where the tensors are known; 0: they are not */
	/* what each part is told of the checkpoint that the job begins with, when it has been read; its path lies
	 * behind them */
	struct part_restore *restore;
	struct decided *window; /* the last ones, oldest first */
	uint32_t n_windows;
};

/* Whether a job may have what it needs of the node (hosted_queue.c). */
struct admission {
	bool queued; /* waits for its turn: no memory, no ranks */
	uint32_t position, overtaken;
	uint64_t need;		      /* bytes, as known at submission */
	uint64_t descriptors, stored; /* that it needs: of this process, of these in the fd store */
	uint64_t reserved;	      /* set aside until all parts have their memory */
};

/* What is kept of a job that is over (hosted_past.c). */
struct outcome_kept {
	enum job_state state;
	char *reason;
	uint64_t window, step;
	struct commit commit; /* of its last window; outcome 0: not known */
	/* gacc.v1.Job, packed, without what may be large; NULL: only the above is known */
	void *view;
	size_t n_view, n_head; /* head: without the ranks */
	bool whole;	       /* the view has the ranks */
	bool settled;	       /* the journal's view is the last */
	uint64_t *counted;     /* bitmap of the last window's micro-batches; NULL: not known */
};

/* What the node of a part has said of it last (hosted_seen.c). */
struct hosted_seen {
	int64_t heard_ns;
	struct part_view view;
};

/* The micro-batches of a window from one part, as far as they have come (hosted_ledger.c). */
struct hosted_ledger {
	uint64_t incarnation, window;
	uint64_t n, total;
	struct history_micro *micro; /* NULL: there is none */
};

/* One part of a job that has its machines. */
struct hosted_part {
	uint32_t node; /* as in struct link_message; 0: this one */
	/* where it stands with its node (placing.c) */
	bool wanted;	 /* a node is to have it */
	bool answered;	 /* it has, or has said why it has not */
	bool ready;	 /* it has said that nothing of the part is missing */
	int64_t sent_ns; /* when it was asked last; 0: it has not been, as far as we know */
	/* when it was asked first over this link, without an answer so far; 0: it has not been */
	int64_t unanswered_ns;
	char *refusal; /* why a node elsewhere does not take a part that has begun; NULL: it does */
	/* what has come from there */
	struct hosted_seen *seen;    /* NULL: it has not been heard of */
	struct hosted_ledger ledger; /* of the window that it has voted for last */
	bool asks;		     /* it waits for the tensor set to be durable (hosted_tensors.c) */
};

struct hosted {
	struct daemon *d;
	uint64_t id;
	uint8_t uuid[16], request_id[16];
	uint32_t uid;
	char *user;
	int64_t created_unix_ns, ended_unix_ns;
	int64_t ending_unix_ns;	     /* of END, while it is being written */
	bool submitted_here;	     /* to this gaccd, not one before it */
	struct specification *text;  /* as submitted; without its message: it is over, and the journal has it */
	const struct job_spec *spec; /* of it */
	struct coord *coord;	     /* NULL: it is over, and only this is left (hosted_retire.c) */
	/* packed, as in the journal; NULL: they are in the specification, or not known, or it is over */
	struct shared *tensors;
	struct outcome_kept end;
	bool aside, giving_up; /* hosted_aside.h: not over in the journal; its END is being written */
	struct hosted_place place;
	struct hosted_part *part;	     /* [n_parts] */
	struct exchanger exchanger;	     /* exchanging.h; of a job of several parts */
	uint32_t n_parts;		     /* 0: it has no machines */
	uint64_t kept_bytes;		     /* of a job that is set aside: its memory at the service manager */
	bool params_durable, params_noted;   /* in the journal; the record of that is being written */
	bool tensors_durable, tensors_noted; /* the same of the tensor set that ranks have registered */
	int64_t released_ns;		     /* ended and idle since */
	bool hurried;			     /* it is not kept for late trainers: its user has ended many since */
	bool renewed;			     /* the journal's view has its last sessions */
	uint32_t n_holders;		     /* calls and messages under way that point here */
	/* what people see */
	struct hosted_window *deciding; /* decided, on its way into the history */
	struct events events;		/* HOSTED_EVENTS of them, fewer when it is over */
	struct calls watchers;		/* Watch (rank RANK_NONE) and WatchSession */
	bool changed;			/* watchers have not heard yet */
	enum job_state told_state;
	uint64_t told_window;
	bool told_any;
	struct rate rate;
	struct scalars *scalars; /* hosted_scalars.h; NULL: nothing was logged */
	struct wait_call *waits; /* hosted_waits.c */
	struct saving *saving;	 /* checkpoints.h; NULL: it is over */
	struct saved_list saved; /* its checkpoints */
	bool has_base;		 /* restoring.h: it begins with a checkpoint, and it is known in which window */
	uint64_t base_window;
	struct admission admission;
	struct launching *launch;     /* launching.h; NULL: gaccd has not launched it */
	struct calls norms_calls;     /* for the norms of the next window */
	struct norms_fetching *norms; /* hosted_norms.h; NULL: never */
};

/* ---- hosted.c ---- */
/* One without machines, with room for so many events. The specification is taken, NULL is one that could not be made.
 * NULL: no memory. */
struct hosted *hosted_make(struct daemon *, uint64_t id, uint32_t uid, const char *user, struct specification *,
			   uint32_t n_events);
void hosted_unmake(struct hosted *); /* one without machines; takes NULL */
struct hosted *hosted_find(const struct daemon *, uint64_t id);
/* "7" and "job/7" are ids, whatever jobs are called. */
bool hosted_name_is_id(const char *name, uint64_t *out_id);
/* By id in decimal, of the jobs that `uid` may see; or by name: the user's own newest that has not ended, else their
 * newest. A name of root that none of root's jobs has means a job of another user, unless `own`. */
struct hosted *hosted_find_named(const struct daemon *, const char *name, uint32_t uid, bool own);
/* May this user see the job, and change it? Its owner and root may. */
bool hosted_is_of(const struct hosted *, uint32_t uid);
bool hosted_ended(const struct hosted *);
/* It has ended, or is about to: an Attach that may make a job makes one of the same name. */
bool hosted_is_over(const struct hosted *);
/* This part of it, if that is on this node; NULL: it is not, or not yet, or not any more. For what looks at this
 * machine's memory, and a trainer's Attach. All else goes over the link. */
struct part *hosted_part_here(const struct hosted *, uint32_t part);
/* The one with this rank, or NULL in the same way. A rank that the job does not have: any, which refuses it. */
struct part *hosted_part_for_rank(const struct hosted *, uint32_t rank);
/* The job that a part's message is about, which has that part. NULL: it is over, or the message is refused. */
struct hosted *hosted_of_message(const struct daemon *, const struct link_message *);
/* What is said of a part: where the job has several, it begins with "part 1: ". */
void hosted_part_text(const struct hosted *, uint32_t part, const char *what, char *out, size_t n);
enum job_state hosted_state(const struct hosted *, const char **out_reason, int64_t *out_since_unix_ns);
/* Bytes of memory that its parts were last said to have. */
uint64_t hosted_host_bytes(const struct hosted *);
/* The reports of its parts say all that there is to know of its ranks. */
bool hosted_ranks_known(const struct hosted *);
/* Bytes of shared memory that this part of it will have with these tensors; all of its parts on this node.
 * ST_NO_MEMORY. */
enum status hosted_part_need(const struct hosted *, uint32_t part, const struct arena *, uint64_t *out);
enum status hosted_need(const struct hosted *, const struct arena *, uint64_t *out);
/* The open one; of a job that ends, the one after its last. */
uint64_t hosted_window(const struct hosted *);
/* For its rates. */
void hosted_note_step(struct hosted *, const struct commit *);
/* The name of uid, or its number. */
void hosted_user_name(uint32_t uid, char *out, size_t n);
/* Whoever keeps a pointer over the end of a handler holds the job meanwhile. */
void hosted_hold(struct hosted *);
void hosted_drop(struct hosted *);
/* For persist_put: the record is written, and nothing waits for it but the job that was held for it. arg: the hosted.
 */
void hosted_on_written(void *arg, enum status);

/* ---- hosted_history.c ---- */
void hosted_event(struct hosted *, bool warning, const char *reason, int64_t rank, const char *text);
void hosted_part_event(struct hosted *, const struct part_event *);
/* Event number i, one that is there (events_first), as it is kept; lent. */
struct history_event hosted_history_event(const struct hosted *, uint64_t i);
/* The events that are kept, into a job that has none. false: no memory. */
bool hosted_add_events(const struct hosted *, struct Gacc__V1__Job *);
/* The last events of an earlier life. */
void hosted_history_load(struct hosted *);
/* When the newest event with this reason was, of those that are kept; 0: none. */
int64_t hosted_history_when(const struct hosted *, const char *reason);
/* The window is decided. */
void hosted_history_decided(struct hosted *, const struct commit *);
/* Its commit is durable. */
void hosted_history_durable(struct hosted *, uint64_t window);
/* It goes into the history if a durable one is applied, or the job ends before that. */
void hosted_history_applied(struct hosted *);
/* A window of the journal, which the history may lack. */
void hosted_history_restored(struct hosted *, const struct commit *);
void hosted_history_fini(struct hosted *);

#endif
