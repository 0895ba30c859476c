/* SPDX-License-Identifier: Apache-2.0 */
/* Failpoints: named places where a test makes a process crash, fail, sleep or stop. Only with -DGACC_FAILPOINTS (CMake
 * option of that name); without it both macros do nothing, and no symbol is left.
 *
 *     FAILPOINT(engine_pass_filled);
 *     enum status st = FAILPOINT_ERROR(gaccd_spawn_before);
 *
 * What is armed lies in a file that all processes of a gaccd map (GACC_FAILPOINTS_FILE; gaccd makes it in its
 * runtime_dir, mode 0600), so "crash once" is once, however often the process is started again. A process without the
 * variable passes every point. Arming: docs/operations.md, "Failpoints". Any thread; a point that is passed costs two
 * atomic operations.
 */
#ifndef GACC_PROTO_FAILPOINT_H
#define GACC_PROTO_FAILPOINT_H

#include "proto/status.h"

#include <stddef.h>

/* PLAIN(process, name, where): nothing can fail there. ERROR(process, name, status, where): the operation beside it can
 * fail, and `status` is what the caller then sees. */
#define FAILPOINT_TABLE(PLAIN, ERROR)                                                                                  \
	/* trainers: libgacc */                                                                                        \
	ERROR(client, client_attach_before, UNAVAILABLE, "before Attach is sent")                                      \
	ERROR(client, client_attach_answered, UNAVAILABLE, "Attach is answered, the session is not taken")             \
	ERROR(client, client_map_received, UNAVAILABLE, "the descriptors of the memory are here, not mapped")          \
	PLAIN(client, client_mapped, "the memory is mapped")                                                           \
	PLAIN(client, client_slot_given, "before the caller writes to a slot")                                         \
	PLAIN(client, client_slot_filled, "the slot is written, nothing is sent")                                      \
	ERROR(client, client_push_before, UNAVAILABLE, "before Push is sent")                                          \
	PLAIN(client, client_box_half, "half of a request of a mailbox is stored")                                     \
	PLAIN(client, client_box_published, "a request of a mailbox is stored, the bell is not rung")                  \
	PLAIN(client, client_call_sent, "a call has left, its answer is not here")                                     \
	ERROR(client, client_push_answered, UNAVAILABLE, "Push is answered, the answer is not used")                   \
	ERROR(client, client_call_before, UNAVAILABLE, "before any other unary call is sent")                          \
	ERROR(client, client_call_answered, UNAVAILABLE, "the call is answered, the answer is not used")               \
	PLAIN(client, client_step_taken, "WaitStep's answer is used, the caller has not got it")                       \
	PLAIN(client, client_apply_ack_before, "optimizer client: applied, AckStep is not sent")                       \
	/* engine */                                                                                                   \
	ERROR(engine, engine_start_fds, NO_MEMORY, "descriptors are mapped, nothing is built")                         \
	PLAIN(engine, engine_hello_before, "ready, before HELLO")                                                      \
	PLAIN(engine, engine_attach_before, "before a session's generation is published")                              \
	PLAIN(engine, engine_pass_before, "pushes are chosen, before the pass over the arena")                         \
	PLAIN(engine, engine_pass_filled, "the idle half is full, before the ledger")                                  \
	PLAIN(engine, engine_ledger_written, "the ledger is written, before the record")                               \
	PLAIN(engine, engine_page_filled, "a record is written, before its sequence number makes it valid")            \
	PLAIN(engine, engine_page_published, "a record is in force")                                                   \
	PLAIN(engine, engine_pass_published, "the pushes count, before slots are zeroed")                              \
	PLAIN(engine, engine_zero_before, "before a slot of zero_after is zeroed")                                     \
	PLAIN(engine, engine_zero_after, "it is zeroed, the list is still in the record")                              \
	PLAIN(engine, engine_answer_push, "before pushes are answered")                                                \
	PLAIN(engine, engine_closed, "CLOSED is in force, before the answer")                                          \
	PLAIN(engine, engine_prepared_before, "the norm is known, before PREPARED is published")                       \
	PLAIN(engine, engine_prepared_after, "PREPARED is in force, before the vote")                                  \
	PLAIN(engine, engine_commit_recorded, "APPLYING is in force, no parameter has changed")                        \
	PLAIN(engine, engine_undo_saved, "a unit is saved, before the stamp says so")                                  \
	PLAIN(engine, engine_undo_held, "the stamp holds the unit, before it is updated")                              \
	PLAIN(engine, engine_chunk_updated, "a call is done, the stamp still holds its last unit")                     \
	PLAIN(engine, engine_chunk_done, "the stamp is past the call")                                                 \
	PLAIN(engine, engine_armed_due, "a window is complete, its armed GO has not begun")                            \
	PLAIN(engine, engine_params_step_before, "all is updated, before the record of the next window")               \
	PLAIN(engine, engine_params_step_after, "the next window is open, before the answer")                          \
	PLAIN(engine, engine_params_put, "a piece of the initial parameters is copied")                                \
	PLAIN(engine, engine_params_ready, "the initial parameters are whole, before the answer")                      \
	PLAIN(engine, engine_blob_told, "parts: the address of a communicator is told")                                \
	PLAIN(engine, engine_board_taken, "parts: the address of one engine is taken")                                 \
	PLAIN(engine, engine_comm_up, "parts: all engines are connected, gaccd does not know")                         \
	PLAIN(engine, engine_fill_begun, "parts: this one has no parameters, none of the others are here")             \
	PLAIN(engine, engine_fill_done, "parts: those of another part are here, nobody has looked at them")            \
	PLAIN(engine, engine_piece_summed, "parts: a piece of the sum over all is taken")                              \
	PLAIN(engine, engine_reduce_done, "parts: the sum over all is here, on the thread that takes it")              \
	PLAIN(engine, engine_sum_taken, "parts: the main thread knows, the norm is not known")                         \
	PLAIN(engine, engine_share_piece, "parts: sharded, a piece of its share is updated, nobody has it")            \
	PLAIN(engine, engine_share_updated, "parts: sharded, this one's share is updated, its digests are known")      \
	PLAIN(engine, engine_shares_gathered, "parts: sharded, all shares are here, on the thread that takes them")    \
	PLAIN(engine, engine_shares_here, "parts: sharded, the main thread knows, their digest is not known")          \
	PLAIN(engine, engine_vote_withdrawn, "parts: the vote of a failed attempt is taken back")                      \
	PLAIN(engine, engine_abort_begun, "parts: before a communicator is aborted")                                   \
	PLAIN(engine, engine_abort_done, "parts: it is aborted, before the answer")                                    \
	ERROR(engine, engine_answer_before, IO_ERROR, "before any answer is sent")                                     \
	ERROR(engine, engine_save_opened, IO_ERROR, "a file of a checkpoint is made, nothing is in it")                \
	ERROR(engine, engine_save_write_before, IO_ERROR, "before a piece of it is written")                           \
	ERROR(engine, engine_save_sync_before, IO_ERROR, "all of it is written, before fdatasync")                     \
	PLAIN(engine, engine_save_synced, "it is on the disk")                                                         \
	PLAIN(engine, engine_save_answer_before, "all files are on the disk, before the answer")                       \
	ERROR(engine, engine_load_file_before, IO_ERROR, "before a file of a checkpoint is read")                      \
	PLAIN(engine, engine_load_file_after, "it is in the segments, its sum is right")                               \
	PLAIN(engine, engine_load_done, "all is read and right, before the parameters are ready")                      \
	PLAIN(engine, engine_box_copied, "a request of a mailbox is taken, nothing else is done")                      \
	PLAIN(engine, engine_box_answered, "a request of a mailbox is answered, the bell is not rung")                 \
	PLAIN(engine, engine_box_block, "the step block of a mailbox is written, its WAIT is not answered")            \
	PLAIN(engine, engine_box_rung, "the bell of a mailbox is rung")                                                \
	/* gaccd */                                                                                                    \
	ERROR(gaccd, gaccd_allocate_before, NO_MEMORY, "before a job's segments are made")                             \
	ERROR(gaccd, gaccd_fdstore_before, UNAVAILABLE, "before a descriptor goes to the service manager")             \
	PLAIN(gaccd, gaccd_fdstore_after, "the service manager has been sent a descriptor")                            \
	ERROR(gaccd, gaccd_barrier_before, UNAVAILABLE, "all descriptors are sent, before the barrier")                \
	ERROR(gaccd, gaccd_spawn_before, IO_ERROR, "before an engine is started")                                      \
	ERROR(gaccd, gaccd_spawned, NO_MEMORY, "the engine is started, it has no descriptors")                         \
	PLAIN(gaccd, gaccd_hello_taken, "an engine has said HELLO, its record is read")                                \
	PLAIN(gaccd, gaccd_attach_before, "a session is chosen, before the engine stores it")                          \
	PLAIN(gaccd, gaccd_attach_stored, "the engine has stored a session, before Attach is answered")                \
	ERROR(gaccd, gaccd_map_before, UNAVAILABLE, "before a trainer gets its descriptors")                           \
	PLAIN(gaccd, gaccd_map_after, "it has got them")                                                               \
	ERROR(gaccd, gaccd_command_before, UNAVAILABLE, "before a command goes to an engine")                          \
	PLAIN(gaccd, gaccd_answer_before, "an engine's answer is here, not taken")                                     \
	ERROR(gaccd, gaccd_reply_before, UNAVAILABLE, "before a trainer's call is answered")                           \
	ERROR(gaccd, gaccd_report_before, NO_MEMORY, "before a report goes to the coordinator")                        \
	ERROR(gaccd, gaccd_blob_before, NO_MEMORY, "parts: before an address goes to the coordinator")                 \
	PLAIN(gaccd, gaccd_restore_before, "started, before the journal is read")                                      \
	PLAIN(gaccd, gaccd_restore_after, "the journal is read, before anybody may call")                              \
	PLAIN(gaccd, gaccd_adopt_before, "before stored memory is adopted")                                            \
	PLAIN(gaccd, gaccd_tick, "the tick that feeds the watchdog")                                                   \
	PLAIN(gaccd, gaccd_drain, "SIGTERM, before calls are drained")                                                 \
	PLAIN(gaccd, gaccd_drained, "drained, before the end")                                                         \
	ERROR(gaccd, gaccd_launcher_before, IO_ERROR, "before a launcher is started")                                  \
	PLAIN(gaccd, gaccd_launcher_started, "the launcher is started, nobody is connected to it")                     \
	ERROR(gaccd, gaccd_save_sweep_before, IO_ERROR, "before what dead writers left is deleted")                    \
	ERROR(gaccd, gaccd_save_states_before, IO_ERROR, "before the states of a part's trainers are written")         \
	PLAIN(gaccd, gaccd_save_states_written, "they are on the disk, the coordinator does not know")                 \
	ERROR(gaccd, gaccd_save_states_joined, IO_ERROR, "parts: all states are read, those in one file not written")  \
	ERROR(gaccd, gaccd_save_manifest_opened, IO_ERROR, "the files are there, the manifest is opened")              \
	ERROR(gaccd, gaccd_save_manifest_written, IO_ERROR, "it is on the disk under its temporary name")              \
	ERROR(gaccd, gaccd_save_rename_before, IO_ERROR, "the checkpoint is whole, before it gets its name")           \
	ERROR(gaccd, gaccd_save_renamed, IO_ERROR, "it has its name, before the directory is synced")                  \
	PLAIN(gaccd, gaccd_save_sealed, "all is on the disk, nobody knows")                                            \
	ERROR(gaccd, gaccd_save_delete_before, IO_ERROR, "before an older one's manifest is deleted")                  \
	ERROR(gaccd, gaccd_save_delete_files, IO_ERROR, "the manifest is deleted, the files are not")                  \
	ERROR(gaccd, gaccd_load_manifest_before, IO_ERROR, "before the manifest of restore_from is read")              \
	PLAIN(gaccd, gaccd_load_manifest_after, "it is read, before the job takes it")                                 \
	/* launcher */                                                                                                 \
	PLAIN(launcher, launcher_listening, "it listens, and knows what its predecessor has left")                     \
	PLAIN(launcher, launcher_start_taken, "the order to start is here, no rank is")                                \
	ERROR(launcher, launcher_spawn_before, IO_ERROR, "before a rank is started")                                   \
	PLAIN(launcher, launcher_spawned, "the process is there, its pid is not noted")                                \
	ERROR(launcher, launcher_note_before, IO_ERROR, "before the pid is written to the launcher's file")            \
	PLAIN(launcher, launcher_noted, "the pid is noted, the process has not got its go")                            \
	PLAIN(launcher, launcher_rank_ended, "a rank has ended, it is not reaped")                                     \
	PLAIN(launcher, launcher_stop_before, "told to stop its ranks, none has been signalled")                       \
	PLAIN(launcher, launcher_end, "all is over, before its socket and file go")                                    \
	/* coordinator: an error before is a write that failed, one after a write of which nobody can tell */          \
	ERROR(coordinator, coord_term_before, STORE_FAILED, "before a term is taken")                                  \
	ERROR(coordinator, coord_term_after, STORE_FAILED, "a term is taken")                                          \
	ERROR(coordinator, coord_job_before, STORE_FAILED, "before JOB is durable")                                    \
	ERROR(coordinator, coord_job_after, STORE_FAILED, "JOB is durable, Submit is not answered")                    \
	ERROR(coordinator, coord_tensors_before, STORE_FAILED, "before TENSORS is durable")                            \
	ERROR(coordinator, coord_tensors_after, STORE_FAILED, "TENSORS is durable, nothing is allocated")              \
	ERROR(coordinator, coord_params_before, STORE_FAILED, "before PARAMS_READY is durable")                        \
	ERROR(coordinator, coord_params_after, STORE_FAILED, "PARAMS_READY is durable")                                \
	ERROR(coordinator, coord_commit_before, STORE_FAILED, "before COMMIT is durable")                              \
	ERROR(coordinator, coord_commit_after, STORE_FAILED, "COMMIT is durable, nobody knows")                        \
	ERROR(coordinator, coord_hold_before, STORE_FAILED, "before HOLD is durable: Pause and Resume")                \
	ERROR(coordinator, coord_hold_after, STORE_FAILED, "HOLD is durable, nobody knows")                            \
	ERROR(coordinator, coord_update_before, STORE_FAILED, "before UPDATE is durable")                              \
	ERROR(coordinator, coord_update_after, STORE_FAILED, "UPDATE is durable, nobody knows")                        \
	ERROR(coordinator, coord_save_before, STORE_FAILED, "before CHECKPOINT is durable")                            \
	ERROR(coordinator, coord_save_after, STORE_FAILED, "CHECKPOINT is durable, nobody knows")                      \
	ERROR(coordinator, coord_save_gone_before, STORE_FAILED, "before CHECKPOINT_GONE is durable")                  \
	ERROR(coordinator, coord_save_gone_after, STORE_FAILED, "CHECKPOINT_GONE is durable")                          \
	ERROR(coordinator, coord_load_before, STORE_FAILED, "before RESTORED is durable")                              \
	ERROR(coordinator, coord_load_after, STORE_FAILED, "RESTORED is durable, nobody knows")                        \
	ERROR(coordinator, coord_end_before, STORE_FAILED, "before END is durable")                                    \
	ERROR(coordinator, coord_end_after, STORE_FAILED, "END is durable, nobody knows")                              \
	ERROR(coordinator, coord_exits_before, STORE_FAILED, "before EXITS is durable: how launched ranks ended")      \
	ERROR(coordinator, coord_exits_after, STORE_FAILED, "EXITS is durable")                                        \
	ERROR(coordinator, coord_order_before, NO_MEMORY, "before an order goes to a node")                            \
	PLAIN(coordinator, coord_order_after, "the node has taken the order")                                          \
	ERROR(coordinator, coord_board_before, NO_MEMORY, "parts: before all addresses go to a part")

enum failpoint {
#define PLAIN(process, name, where) FAILPOINT_PLAIN_##name,
#define ERROR(process, name, status, where) FAILPOINT_ERROR_##name,
	FAILPOINT_TABLE(PLAIN, ERROR)
#undef PLAIN
#undef ERROR
		FAILPOINT_COUNT
};

#ifdef GACC_FAILPOINTS

#define FAILPOINT(name) ((void)failpoint_pass(FAILPOINT_PLAIN_##name))
/* ST_OK, or the point's status when `error` is armed. */
#define FAILPOINT_ERROR(name) failpoint_pass(FAILPOINT_ERROR_##name)

enum status failpoint_pass(enum failpoint);

/* gaccd, before its first thread: maps <dir>/failpoints, or the file that the environment names, making it if need be;
 * what is armed in it stays armed. Sets GACC_FAILPOINTS_FILE for children. errno on ST_IO_ERROR. */
enum status failpoint_make(const char *dir);
/* "GACC_FAILPOINTS_FILE=..." for the environment of a child; NULL without the variable. Static storage. */
char *failpoint_environment(void);
/* One line of the socket's protocol: list, hits, arm NAME ACTION [MS] [skip N] [count N], disarm NAME|all. The answer,
 * lines of text that end with "ok\n" or one "error: ...\n", is cut at n. `line` is changed. */
void failpoint_command(char *line, char *out, size_t n);

#else

/* The names are looked up, so that each point is in the table in every build. */
#define FAILPOINT(name) ((void)FAILPOINT_PLAIN_##name)
#define FAILPOINT_ERROR(name) ((void)FAILPOINT_ERROR_##name, ST_OK)

static inline enum status failpoint_make(const char *dir)
{
	(void)dir;
	return ST_OK;
}

static inline char *failpoint_environment(void)
{
	return NULL;
}

#endif
#endif
