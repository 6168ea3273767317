//! `messages`: pairs of threads pass messages, in the manner of hackbench. Who can do nothing gives way; that
//! time is not measured, since a switch of threads costs a host that emulates ring 0 more than anything here.

use core::sync::atomic::{AtomicU64, Ordering};

use locked::Locked;
use workloads::messages::{CHANNELS, messages_receive, messages_send};

use crate::bench::fenced_timestamp;
use crate::console::print;
use crate::kernel_call;
use crate::options::Options;
use crate::workload::{print_calls, print_checksum, spawn_all};

static MESSAGES: AtomicU64 = AtomicU64::new(0);
static SENDS: Locked = Locked::new(0);
static RECEIVES: Locked = Locked::new(0);
static CYCLES: Locked = Locked::new(0);
static SUM: Locked = Locked::new(0);

/// `threads=` threads (4), half of them senders; each sender sends `iterations` messages.
pub fn run(options: &Options) {
    let pairs = (options.threads.unwrap_or(4) / 2).clamp(1, CHANNELS as u64);
    MESSAGES.store(options.iterations, Ordering::Relaxed);
    for _ in 0..options.rounds {
        CYCLES.store(0);
        spawn_all(2 * pairs, false, thread);
        kernel_call::join();
        let count = pairs * options.iterations;
        print(format_args!("bench messages {count} {}", CYCLES.load()));
    }
    print_calls("messages_send", SENDS.load());
    print_calls("messages_receive", RECEIVES.load());
    print_checksum("messages", SUM.load());
    [&SENDS, &RECEIVES, &SUM]
        .iter()
        .for_each(|word| word.store(0));
}

/// Even threads send to the channel that the next one receives from.
extern "C" fn thread(number: u64) -> ! {
    let channel = number / 2;
    let is_sender = number.is_multiple_of(2);
    let (mut done, mut tried, mut sum, mut cycles) = (0, 0, 0u64, 0);
    let wanted = MESSAGES.load(Ordering::Relaxed);
    while done < wanted {
        let start = fenced_timestamp();
        let before = done;
        while done < wanted {
            tried += 1;
            let message = if is_sender {
                messages_send(channel, done + 1)
            } else {
                messages_receive(channel)
            };
            if message == 0 {
                break;
            }
            done += 1;
            if !is_sender {
                sum = sum.wrapping_add(message.wrapping_mul(channel + 1));
            }
        }
        if done > before {
            cycles += fenced_timestamp() - start;
        }
        if done < wanted {
            kernel_call::give_way();
        }
    }
    if is_sender { &SENDS } else { &RECEIVES }.fetch_add(tried);
    CYCLES.fetch_add(cycles);
    SUM.fetch_add(sum);
    kernel_call::exit()
}
