# Writes OUTPUT: a C++ file with the text of every file below FOLDER, as KernelFile entries (store/source_writer.h).
# cmake -D FOLDER=... -D OUTPUT=... -P embed_kernels.cmake
file(GLOB_RECURSE files RELATIVE ${FOLDER} ${FOLDER}/*.cuh ${FOLDER}/*.h)
list(SORT files)
set(text "// Written by cmake/embed_kernels.cmake.\n#include \"store/source_writer.h\"\n\nnamespace onepass {\nnamespace {\nconstexpr KernelFile kFiles[] = {\n")
foreach(file IN LISTS files)
  file(READ ${FOLDER}/${file} content)
  string(APPEND text "{\"${file}\", R\"kernel(${content})kernel\"},\n")
endforeach()
string(APPEND text "};\n}  // namespace\n\nstd::span<const KernelFile> kernel_files() { return kFiles; }\n\n}  // namespace onepass\n")
file(WRITE ${OUTPUT} "${text}")
