/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives between the engines of one job: the seam to whatever moves the bytes.
 *
 * A job has D parts, one engine each. A communicator connects the D engines for one attempt or for several; its name is
 * (job, epoch, term, k), and one life of each engine belongs to it. Nothing is ever repaired: after any failure the
 * communicator is unusable, and the members form the next one. That one path serves deaths, cut networks, aborts and
 * restarts alike. A communicator of some parts of a job only numbers its members from 0; its callers translate.
 *
 * Implementations stand behind one table of functions: coll_local.h connects members in one process, coll_gloo.h those
 * of several (hosts); NCCL (devices) can follow. All of them promise this:
 *
 * - Order: exchange gives the pieces of all parts to one callback, which adds them in part order. So the bits of a sum
 *   depend on the parts alone, not on timing, on the network, or on where parts run. A library that adds by itself
 *   (NCCL) is not ordered (coll_is_ordered), and gives the callback one source, the sum.
 * - Equal calls: all members call the same operations in the same order, with equal bounds, division, piece, element,
 *   bytes and root. A difference breaks the communicator where the implementation can see it (both do; over Gloo a
 *   coll_sum_small beside another operation is a stall).
 * - Failures: an operation that does not return ST_OK has broken the communicator. Every later call of this member
 *   returns the same status at once. Other members fail within a bounded time; a call of theirs that was complete
 *   already may still return ST_OK. So whether an attempt has succeeded is known only when all have voted.
 * - Memory: the memory of an operation is the caller's again when the call returns, also after a failure: nobody reads
 *   or writes it any more. After a failure the content of what was to be received is undefined; `in` is unchanged.
 * - Lives: a second life of a part is refused at once, by the board (board.h), by open and by join.
 * - Stalls: a member that gets nothing from those it waits for during stall_ns gives up, and names them. A word that
 *   they are at work (coll_at_work) counts as something, as long as it comes again in that time.
 * - Operations do not synchronise, except barrier: one may return at one member before another member has begun it.
 *
 * Threads. Each member (struct coll) has one communication thread. Members need no lock of the caller.
 *
 *   coll_open                            any thread
 *   coll_join, _exchange, _gather,       the communication thread: one call at a time; they block, and call the
 *   _sum_small, _broadcast, _barrier     callbacks on this thread
 *   coll_poll, coll_abort, coll_at_work  any thread, also in a callback and while another call blocks; not once
 *                                        coll_leave has been called
 *   coll_leave                           the communication thread, or another after it has ended
 *   coll_blob, coll_is_ordered           any thread; what they return never changes
 */
#ifndef GACC_COLL_COLL_H
#define GACC_COLL_COLL_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COLL_MAX_PARTS 64	    /* of a communicator on hosts: connections and addresses grow with the square */
#define COLL_MAX_BLOB 65536	    /* bytes of one member's address */
#define COLL_MAX_PIECE (64u << 20)  /* bytes */
#define COLL_MAX_SMALL (256u << 10) /* bytes of a coll_sum_small */
/* After an abort every call of the member has returned within this time. A caller that sees it exceeded ends its
 * process: the network library hangs. */
#define COLL_ABORT_NS (INT64_C(15) * 1000000000)

/* The name of a communicator. Later ones of a job are greater: by epoch, then term, then k. */
struct coll_id {
	uint64_t job, epoch, term, k;
};
int coll_id_compare(const struct coll_id *, const struct coll_id *); /* <0, 0, >0; by job first */

/* A member's address as the board gives it to all. */
struct coll_address {
	uint64_t life;	  /* of the engine: random bits that it drew at its start, not 0 */
	const void *blob; /* what coll_blob has returned there */
	size_t n_blob;
};

/* Why a communicator is unusable, as one member sees it. Members need not agree: one that gives up on part 2 names part
 * 2, and the others, which see it go, name that one. */
struct coll_failure {
	/* ST_OK: nothing has failed.
	 * CANCELLED: coll_abort here. UNAVAILABLE: a suspect has aborted, left, died or failed. STALLED: nothing came
	 * from the suspects during stall_ns, here or at another member. CHECKSUM: bytes from the suspect were changed
	 * on the way. INVALID_ARGUMENT: wrong arguments, or others than the suspect's.
	 * ALREADY_EXISTS: another life of the suspect belongs to this communicator. MALFORMED: the suspect's address.
	 * NO_MEMORY. Else what a callback has returned. */
	enum status status;
	uint32_t n_suspects;
	uint32_t suspect[COLL_MAX_PARTS]; /* parts, ascending; never this one unless its own life is refused */
	char text[160];			  /* for a log line or an event: "part 2 has died" */
};

enum coll_phase { COLL_OPENED, COLL_JOINING, COLL_READY, COLL_BROKEN };

struct coll_state {
	enum coll_phase phase;
	uint32_t connected; /* other members that have joined */
	uint64_t pieces;    /* received or produced by this member, of all operations, and calls of coll_at_work:
			     * grows while there is progress */
	struct coll_failure failure;
};

/* A piece of this part's share: bytes [from, from + n) of the operation's memory. Pieces come in ascending order, each
 * once. */
struct coll_piece {
	uint64_t from;
	size_t n;
	/* Devices: the callback queues its kernels here and does not wait for them; the operation does, before it
	 * returns. NULL on hosts. */
	void *stream;
};

/* Adds: source[s] points to the n bytes of part s, for all parts in part order, this one included. They are summed left
 * to right: ((source[0] + source[1]) + source[2]) + ... n_sources may be 1 with D > 1: the sum itself (not
 * ordered). The sources are valid during the call, on a device until its kernels have run. Anything but ST_OK breaks
 * the communicator; so does a call that takes longer than the others' stall_ns. */
typedef enum status coll_sum_fn(void *arg, const struct coll_piece *, const void *const *source, uint32_t n_sources);
/* Writes the piece into the operation's buffer, after which it is sent. Failures as above. */
typedef enum status coll_produce_fn(void *arg, const struct coll_piece *);

/* Shares: share s is the bytes [bounds[s], bounds[s + 1]) of the memory; bounds has one value more than there are
 * shares, and they never descend. A share may be empty. The last piece of a share is as long as what is left. On a
 * device, all addresses are the device's. */

/* Who owns which share. Equal at all members. */
struct coll_division {
	uint32_t n_shares;	       /* at most COLL_MAX_PARTS */
	uint32_t owns[COLL_MAX_PARTS]; /* [D]: the share of each part; of an exchange each share has one owner */
	/* Of a gather: parts give their shares only to those of the same group, and all parts of one own different
	 * shares. Groups are `group` consecutive parts each, or with `across` parts whose distances are multiples of
	 * `group`, which divides D. 0: all parts are one group. */
	uint32_t group, across;
	uint32_t reserved; /* 0: divisions are compared as bytes */
};

/* How many pieces a share has. */
uint64_t coll_n_pieces(const uint64_t *bounds, uint32_t share, uint64_t piece);
/* Piece number i of it. */
struct coll_piece coll_piece_at(const uint64_t *bounds, uint32_t share, uint64_t piece, uint64_t i);
/* The share of a part. NULL: part s owns share s, and all parts are one group. */
uint32_t coll_share_of(const struct coll_division *, uint32_t part);
/* Whether the two parts give each other their shares. */
bool coll_is_same_group(const struct coll_division *, uint32_t a, uint32_t b);

struct coll_exchange { /* reduce-scatter: everybody sends each part its share, and that part sums */
	const void *in;
	const uint64_t *bounds;
	uint64_t piece;	  /* bytes, at most COLL_MAX_PIECE; scratch memory is D - 1 of them, or some times that */
	uint32_t element; /* bytes: 2 (bf16), 4 (f32) or 8 (f64); bounds and piece are multiples */
	coll_sum_fn *sum;
	void *arg;
	const struct coll_division *division; /* NULL: see coll_share_of */
};

struct coll_gather { /* all-gather: everybody gets everybody's share, or those of its group, in place */
	void *buffer;
	const uint64_t *bounds;
	uint64_t piece;
	coll_produce_fn *produce; /* NULL: the own share is in the buffer already */
	void *arg;
	/* This member has all the others' shares: it gives its own, and the rest of its buffer is not written. Each
	 * member says that for itself. */
	bool whole;
	const struct coll_division *division; /* NULL: see coll_share_of */
};

/* Everybody gets all bytes of all parts and sums all of them: one message to each part, and no wait but for the
 * others'. For so few bytes that messages cost more than what is in them. The sum is called once, for the piece [0, n).
 */
struct coll_sum_small {
	const void *in;
	size_t n;	  /* bytes, at most the members' `small` */
	uint32_t element; /* as in an exchange; n is a multiple */
	coll_sum_fn *sum;
	void *arg;
};

/* One member. Implementations embed it. */
struct coll {
	const struct coll_ops *ops;
	uint32_t part, n_parts, small;
};

struct coll_config {
	struct coll_id id;
	uint32_t part, n_parts; /* part < n_parts <= COLL_MAX_PARTS */
	uint64_t life;		/* of this engine; not 0 */
	int64_t stall_ns;	/* without progress; > 0 */
	int64_t join_ns;	/* for all of coll_join; > 0 */
	/* Bytes, at most COLL_MAX_SMALL: of the largest coll_sum_small; 0: there is none. The same at all members. Each
	 * keeps two messages of so many bytes for each other part. */
	uint32_t small;
};

/* A transport in this process: a device of Gloo, the library of NCCL, or the members of coll_local. Any thread. */
struct coll_net {
	const struct coll_net_ops *ops;
};

/* A new member, which is not connected yet. A failure leaves nothing behind; *why (NULL: not wanted) tells more. */
enum status coll_open(struct coll_net *, const struct coll_config *, struct coll **out, struct coll_failure *why);
/* This member's address, for the board; valid until coll_leave. At most COLL_MAX_BLOB bytes. */
const void *coll_blob(const struct coll *, size_t *n);
bool coll_is_ordered(const struct coll *); /* its exchange gives the callback all parts' pieces: see Order above */
/* Connects to all: `all` has n_parts addresses in part order, this member's among them. Blocks until everybody is here,
 * at most join_ns, and at most stall_ns without a new one. */
enum status coll_join(struct coll *, const struct coll_address *all);

/* Block until done. */
enum status coll_exchange(struct coll *, const struct coll_exchange *);
enum status coll_gather(struct coll *, const struct coll_gather *);
enum status coll_sum_small(struct coll *, const struct coll_sum_small *);
enum status coll_broadcast(struct coll *, void *buffer, size_t n, uint32_t root); /* the root's n bytes to all */
enum status coll_barrier(struct coll *); /* returns ST_OK only after all have called it */

/* Never blocks. Any thread. */
void coll_poll(struct coll *, struct coll_state *out);
/* This member has got on with something that the others wait for, outside of an operation or in a callback. They hear
 * of it, at most some times in stall_ns. To be called for steps that are done, not by a clock: a member that is stuck
 * must stall. No effect before coll_join has returned, or on a communicator that is broken. Never blocks. Any thread.
 */
void coll_at_work(struct coll *);
/* Ends this member's calls, which return ST_CANCELLED, and breaks the communicator for all. Returns at once; the calls
 * come back within COLL_ABORT_NS (coll_local: after the copy or the callback that runs). Has no effect on a
 * communicator that is broken already. Any thread. */
void coll_abort(struct coll *);
/* Frees the member; NULL is fine. Breaks the communicator for the others, except in operations that are complete: after
 * a barrier nobody notices. No other call of this member may be running. */
void coll_leave(struct coll *);
void coll_net_free(struct coll_net *); /* all members have left; NULL is fine */

/* ---- for implementations ---- */

/* The functions above have checked the arguments: shares are in order, pieces fit, n_blob is in bounds. */
struct coll_ops {
	bool ordered;
	const void *(*blob)(const struct coll *, size_t *n);
	enum status (*join)(struct coll *, const struct coll_address *all);
	enum status (*exchange)(struct coll *, const struct coll_exchange *);
	enum status (*gather)(struct coll *, const struct coll_gather *);
	enum status (*sum_small)(struct coll *, const struct coll_sum_small *);
	enum status (*broadcast)(struct coll *, void *buffer, size_t n, uint32_t root);
	enum status (*barrier)(struct coll *);
	void (*poll)(struct coll *, struct coll_state *out);
	void (*at_work)(struct coll *);
	/* Breaks the communicator because of this member, for this reason; returns the status of its first failure. */
	enum status (*fail)(struct coll *, enum status, const char *text);
	void (*leave)(struct coll *);
};

struct coll_net_ops {
	enum status (*open)(struct coll_net *, const struct coll_config *, struct coll **out, struct coll_failure *why);
	void (*free)(struct coll_net *);
};

/* Fills *f; bit s of `suspects`: part s is one. */
void coll_failure_set(struct coll_failure *f, enum status, uint64_t suspects, const char *text);

#endif
