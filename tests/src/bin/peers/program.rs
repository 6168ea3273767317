//! The program that tools for processes trace (`tests/peers`): built for each of them, and run.

use std::path::{Path, PathBuf};
use std::process::Command;

use tests::measure::Failed;

/// How the traced half of the program is made.
#[derive(Debug, Clone, Copy)]
pub struct Build {
    /// The compiler.
    pub compiler: &'static str,
    /// What makes it instrument.
    pub flags: &'static [&'static str],
    /// What the linker is told.
    pub link: &'static [&'static str],
    /// Another file of the program, if any.
    pub more: Option<&'static str>,
}

impl Build {
    /// Builds it in `place`.
    pub fn make(&self, place: &Path) -> Result<PathBuf, Failed> {
        let mut objects = vec![
            self.object(place, "main.c", "main.o", &[])?,
            self.object(place, "traced.c", "plain.o", &["-DPLAIN"])?,
            self.object(place, "traced.c", "traced.o", self.flags)?,
        ];
        if let Some(more) = self.more {
            objects.push(self.object(place, more, "more.o", &[])?);
        }
        let program = place.join("program");
        let mut linker = Command::new(self.compiler);
        linker.arg("-no-pie").args(self.link).args(&objects);
        done(linker.arg("-o").arg(&program))?;
        Ok(program)
    }

    fn object(
        &self,
        place: &Path,
        source: &str,
        name: &str,
        flags: &[&str],
    ) -> Result<PathBuf, Failed> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let object = place.join(name);
        let mut compiler = Command::new(self.compiler);
        compiler.args(["-O2", "-fno-pie", "-c"]).args(flags);
        done(
            compiler
                .arg(folder.join(source))
                .arg("-o")
                .arg(&object)
                .current_dir(place),
        )?;
        Ok(object)
    }
}

/// The lines that a command prints, which must end well.
pub fn done(command: &mut Command) -> Result<Vec<String>, Failed> {
    let output = command
        .output()
        .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{command:?}: {}: {said}", output.status).into());
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().map(str::to_owned).collect())
}
