/* A program that embeds Python, as an engine in C++ does: runs the Python text that it is given, gives Python's lock back,
 * and goes on by itself, without any Python frame. */
#include <Python.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count < 2) return 64;
    alarm(240);
    Py_Initialize();
    if (PyRun_SimpleString(words[1])) return 1;
    PyEval_SaveThread();
    for (;;) pause();
}
