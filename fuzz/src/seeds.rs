//! Writes the seeds of a target into a folder: `seeds TARGET FOLDER`.

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(folder)) = (arguments.next(), arguments.next()) else {
        return Err(std::io::Error::other("seeds TARGET FOLDER"));
    };
    std::fs::create_dir_all(&folder)?;
    let target = targets::TARGETS.iter().find(|target| target.name == name);
    for (number, seed) in target
        .map_or_else(Vec::new, |target| (target.seeds)())
        .iter()
        .enumerate()
    {
        std::fs::write(format!("{folder}/seed-{number}"), seed)?;
    }
    Ok(())
}
