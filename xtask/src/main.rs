//! Writes the generated files that are stale, and says which.

fn main() {
    for document in xtask::documents() {
        if document.write() {
            println!("{}: written", document.path);
        }
    }
}
