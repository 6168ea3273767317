//! The host's side of a trace: when the threads of the vCPUs were in the guest.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use terms::field::FieldValue;

use super::file::{self, Buffers, Head};
use super::format::{KVM_ENTRY, KVM_EXIT, PRINT};
use super::{Failed, NO_MORE, Pair, printed, with_text};
use crate::export::events::EventLine;
use crate::host::{ENTRY, EXIT, ExitReason};

/// Whose numbers reasons are given by: AMD's.
const SVM: u32 = 2;

/// The number that a processor gives for an exit of this kind (AMD64 manual, volume 2, appendix C): readers know exits by it.
fn as_svm(reason: &str) -> u32 {
    let known = [
        (ExitReason::Kicked, 0x60),
        (ExitReason::PortWrite, 0x7b),
        (ExitReason::PortRead, 0x7b),
        (ExitReason::MmioWrite, 0x400),
        (ExitReason::MmioRead, 0x400),
        (ExitReason::Debug, 0x41),
        (ExitReason::Shutdown, 0x7f),
        (ExitReason::Interrupt, 0x60),
        (ExitReason::Interruptible, 0x64),
        (ExitReason::PageFault, 0x400),
        (ExitReason::Halt, 0x78),
        (ExitReason::Pause, 0x77),
        (ExitReason::Hypercall, 0x81),
        (ExitReason::Cpuid, 0x72),
        (ExitReason::Msr, 0x7c),
        (ExitReason::ControlRegister, 0x10),
        (ExitReason::Exception, 0x4d),
        (ExitReason::Apic, 0x402),
    ];
    let known = known.iter().find(|(one, _)| one.name() == reason);
    known.map_or(u32::MAX, |(_, number)| *number)
}

/// Writes the host's file.
#[derive(Debug)]
pub struct HostDat {
    cpus: Buffers,
    /// The thread of each vCPU.
    tids: BTreeMap<u16, u32>,
    /// The CPU that each was on last.
    on: BTreeMap<u16, u16>,
}

impl HostDat {
    /// Events wait in files in this folder, one for each CPU of the host.
    #[must_use]
    pub fn new(room: &Path) -> Self {
        Self {
            cpus: Buffers::new(room),
            tids: BTreeMap::new(),
            on: BTreeMap::new(),
        }
    }

    /// What a vCPU's thread did, or a loss of some of that. Events come in the order of time.
    ///
    /// # Errors
    /// What the system says.
    pub fn add(&mut self, line: &EventLine) -> io::Result<()> {
        let number = |name: &str| {
            line.fields.0.iter().find_map(|(field, value)| match value {
                FieldValue::Unsigned(number) if field == name => Some(*number),
                _ => None,
            })
        };
        let number16 = |name| u16::try_from(number(name)?).ok();
        let known = self.on.get(&line.vcpu).copied().unwrap_or_default();
        let cpu = number16("cpu").unwrap_or(known);
        let tid = number("tid").and_then(|tid| u32::try_from(tid).ok());
        let tid = tid
            .or_else(|| self.tids.get(&line.vcpu).copied())
            .unwrap_or_default();
        self.on.insert(line.vcpu, cpu);
        self.tids.insert(line.vcpu, tid);
        if line.lost > 0 {
            return self.cpus.of(cpu)?.lost(line.lost);
        }
        let vcpu = u32::from(line.vcpu).to_le_bytes();
        let rip = line.fields.0.iter().find_map(|(field, value)| match value {
            FieldValue::Pointer(rip) if field == "rip" => Some(rip.0),
            _ => None,
        });
        let rip = rip.unwrap_or_default().to_le_bytes();
        let bytes = match line.event.as_deref() {
            Some(ENTRY) => {
                let mut bytes = KVM_ENTRY.begin(tid);
                bytes.extend(vcpu);
                bytes.extend(rip);
                bytes
            }
            Some(EXIT) => {
                let reason = line.fields.0.iter().find(|(field, _)| field == "reason");
                let reason = reason.map_or_else(String::new, |(_, value)| value.to_string());
                let mut bytes = KVM_EXIT.begin(tid);
                bytes.extend(vcpu);
                bytes.extend(rip);
                bytes.extend(as_svm(&reason).to_le_bytes());
                bytes.extend(SVM.to_le_bytes());
                with_text(bytes, &reason)
            }
            _ => printed(tid, &line.to_string()),
        };
        self.cpus.of(cpu)?.add(line.time_ns, &bytes)
    }

    /// Writes the whole file; `guest` is what its guest is called.
    ///
    /// # Errors
    /// [`Failed`].
    pub fn finish(mut self, pair: Pair, guest: &str, out: &mut impl Write) -> Result<(), Failed> {
        for (cpu, last_ns) in self.cpus.without_end() {
            let pages = self.cpus.of(cpu);
            let printed = pages.and_then(|pages| pages.add(last_ns, &printed(0, NO_MORE)));
            printed.map_err(Failed::Waiting)?;
        }
        let threads = self.tids.iter();
        let threads = threads
            .map(|(vcpu, tid)| (*tid, format!("vcpu{vcpu}")))
            .collect();
        let head = Head {
            ftrace: &[PRINT],
            system: "kvm",
            events: vec![KVM_ENTRY, KVM_EXIT],
            functions: &[],
            threads: &threads,
            cpus: self.cpus.count(1),
            options: pair.of_host(guest, &self.tids),
        };
        file::write(&head, self.cpus, out)
    }
}
