/* SPDX-License-Identifier: Apache-2.0 */
/* Of mailbox.pml: the rules that a mutant takes away. */
#if defined(MUTANT_bitmap_not_asked)
#define UNSEEN(p) (((voided) & (p)) == 0)
#elif defined(MUTANT_void_not_asked)
#define UNSEEN(p) ((counted & (p)) == 0)
#else
#define UNSEEN(p) (((counted | voided) & (p)) == 0)
#endif
#ifdef MUTANT_check_not_asked
#define CHECK_OK(b, c) true
#else
#define CHECK_OK(b, c) ((torn[b] & BIT(c)) == 0)
#endif
#ifdef MUTANT_present_not_checked
#define PRESENT_OK(b, c) true
#else
#define PRESENT_OK(b, c) ((half[b] & BIT(c)) == 0)
#endif
#ifdef MUTANT_restart_does_not_scan
#define SCANS (!second_life)
#else
#define SCANS true
#endif
#ifdef MUTANT_mailbox_before_run
#define MAY_GIVE(r) true
#else
#define MAY_GIVE(r) running
#endif
#ifdef MUTANT_mailbox_not_compared
#define IN_FORCE(r) true
#else
#define IN_FORCE(r) (given[r] == sgen[r])
#endif
#ifdef MUTANT_d_not_reset
#define D(b, c) done[AT((b) & ~1, c)]
#else
#define D(b, c) done[AT(b, c)]
#endif
#ifdef MUTANT_answer_before_told
#define UNTOLD 0
#else
#define UNTOLD untold
#endif
#if defined(MUTANT_answer_before_told) || defined(MUTANT_rpc_before_told)
#define MAY_ZERO true
#else
#define MAY_ZERO (untold == 0)
#endif
#ifdef MUTANT_answer_before_zero
#define ZEROING 0
#else
#define ZEROING zeroing
#endif
#if defined(MUTANT_rpc_before_told)
#define RPC_SAYS(p) (((zeroing) & (p)) == 0)
#elif defined(MUTANT_rpc_before_zero)
#define RPC_SAYS(p) (((untold) & (p)) == 0)
#else
#define RPC_SAYS(p) (((untold | zeroing) & (p)) == 0)
#endif
#ifdef MUTANT_flush_before_mailbox
#define HAS_BOX(r) true
#else
#define HAS_BOX(r) (given[r] == 0 || (reads & BIT(BOX(r, given[r]))) != 0)
#endif
#ifdef MUTANT_flush_refuses_parked
#define NONE_PARKED(r) true
#else
#define NONE_PARKED(r) (parked[r] == 0)
#endif
#if defined(MUTANT_flush_does_not_scan)
#define HAS_SCANNED(r) true
#else
#define HAS_SCANNED(r) ((scanned & BIT(r)) != 0 && look[BOX(r, sgen[r])] == 0)
#endif
#ifdef MUTANT_rpc_does_not_scan
#define RPC_HAS_SCANNED(r) true
#else
#define RPC_HAS_SCANNED(r) (HAS_BOX(r) && (scanned & BIT(r)) != 0 && look[BOX(r, sgen[r])] == 0)
#endif
#ifdef MUTANT_block_after_answer
#define BLOCK_THERE(b) true
#else
#define BLOCK_THERE(b) (block[b] == window)
#endif
#ifdef MUTANT_wait_forgotten
#define SAW_COMMIT saw_commit
#else
#define SAW_COMMIT true
#endif
#ifdef MUTANT_wait_before_gaccd
#define GACCD_FIRST true
#else
#define GACCD_FIRST (heard == window)
#endif
#ifdef MUTANT_rpc_before_attach
#define CONNECTED(r) true
#else
#define CONNECTED(r) ((hung & BIT(r)) == 0)
#endif
