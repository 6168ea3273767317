//! What a user writes for a probe.

use tracer::capture::{Capture, Captured, Expression, Source};
use tracer::engine::probes::NewProbe;
use tracer::image::field::FieldType;

use super::{Tracing, TracingError};

const REGISTERS: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

impl Tracing {
    /// The probe that `text` describes.
    ///
    /// # Errors
    /// [`TracingError::BadProbe`] says what is wrong with it.
    pub(super) fn read_probe(&self, text: &str) -> Result<NewProbe, TracingError> {
        let bad = |why: String| TracingError::BadProbe {
            probe: text.to_owned(),
            why,
        };
        let mut words = text.split_whitespace();
        let spec = words
            .next()
            .ok_or_else(|| bad("nothing is said".to_owned()))?;
        let address = self.shared.image.symbols.address_of(spec);
        let address = address.ok_or_else(|| bad(format!("there is no function '{spec}'")))?;
        let values = words.map(|word| {
            let (name, register) = word.split_once('=').unwrap_or((word, word));
            let (register, kind) = register.split_once(':').unwrap_or((register, "x64"));
            let register = register.trim_start_matches('%');
            let name = name
                .split(':')
                .next()
                .unwrap_or(name)
                .trim_start_matches('%');
            let number = REGISTERS.iter().position(|known| *known == register);
            let number = number.and_then(|number| u8::try_from(number).ok());
            let number = number.ok_or_else(|| bad(format!("no register '{register}'")))?;
            Ok(Captured {
                name: name.into(),
                kind: FieldType::named(kind).ok_or_else(|| bad(format!("no type '{kind}'")))?,
                source: Source::Number(Expression::Register(number)),
            })
        });
        let capture = Capture {
            values: values.collect::<Result<_, TracingError>>()?,
            condition: None,
        };
        Ok(NewProbe {
            name: spec.into(),
            address,
            capture,
        })
    }
}
