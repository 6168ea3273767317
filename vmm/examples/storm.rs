use std::time::{Duration, Instant};
use vmm::{devices::console::ConsoleWriter, layout, loader::KernelFile, machine::*};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let kernel = KernelFile::read(a[1].as_ref()).unwrap();
    let console = ConsoleWriter::start(std::io::stdout()).unwrap();
    let n: u32 = a[3].parse().unwrap();
    let gap: u64 = a[4].parse().unwrap();
    let vcpus: u64 = a[5].parse().unwrap();
    let config = MachineConfig {
        cmdline: a[2].clone(),
        vcpus,
        memory_mib: 64,
        window_bytes: layout::WINDOW_SIZE,
    };
    let mut m = Machine::build(&config, &kernel, console.queue()).unwrap();
    m.start().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let t = Instant::now();
    let mut cpl = [0u32; 4];
    for _ in 0..n {
        let q = m.quiesce(PATIENCE).unwrap();
        for f in q.full_registers() {
            cpl[usize::from(f.system.ss.dpl & 3)] += 1;
        }
        drop(q);
        if gap > 0 {
            std::thread::sleep(Duration::from_micros(gap));
        }
    }
    eprintln!(
        "{n} pauses in {:?}, cpl {cpl:?}, states {:?}",
        t.elapsed(),
        m.vcpu_states()
    );
    m.with_pause_times(|p| {
        for (n, h) in [("parked", &p.parked), ("released", &p.released)] {
            eprintln!(
                "{n}: p50 {} p90 {} p99 {} max {} ns",
                h.value_at_quantile(0.5),
                h.value_at_quantile(0.9),
                h.value_at_quantile(0.99),
                h.max()
            );
        }
    });
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        if let Some(e) = m.events().next() {
            eprintln!("{e:?}");
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    m.stop(PATIENCE);
    console.finish(PATIENCE);
}
