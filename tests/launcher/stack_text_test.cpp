#include "launcher/watch/stack_text.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::launcher {
namespace {

TEST(StackTextTest, NamesAreShort) {
  EXPECT_EQ(short_function("poll"), "poll");
  EXPECT_EQ(short_function("lockstep::shm::reduce<float, std::vector<int>>(lockstep::Op, unsigned long)"),
            "shm::reduce");
  EXPECT_EQ(short_function("void at::native::add<float>(at::Tensor const&) const"), "native::add");
  EXPECT_EQ(
      short_function("std::_Function_handler<void (), main::{lambda()#1}>::_M_invoke(std::_Any_data const&)"),
      "_Function_handler::_M_invoke");
  EXPECT_EQ(short_function(""), "?");
}

TEST(StackTextTest, FramesOfEuStack) {
  EXPECT_EQ(short_stacks("PID 7 - process\nTID 7:\n#0  0x00007f1 __poll\n#1  0x0000552 a::b::wait(int)\n"),
            "  TID 7:\n    __poll\n    b::wait\n");
}

TEST(StackTextTest, GdbWithoutItsChatter) {
  const std::string text =
      "[New LWP 8]\n[New LWP 9]\n[Thread debugging using libthread_db enabled]\nUsing host libthread_db library \"/lib/x\".\n"
      "0x00007f in __poll () from /lib/libc.so.6\n\nThread 2 (Thread 0x7f (LWP 8) \"gloo\"):\n"
      "#0  0x00007f12 in epoll_wait (epfd=3, events=0x7f) at ../sysdeps/epoll_wait.c:30\n"
      "#1  0x00007f13 in gloo::transport::tcp::Loop::run() () from /venv/libtorch_cpu.so\n[Inferior 1 (process 7) detached]\n";
  EXPECT_EQ(short_stacks(text),
            "  Thread 2 (Thread 0x7f (LWP 8) \"gloo\"):\n    epoll_wait at epoll_wait.c:30\n    Loop::run\n");
}

TEST(StackTextTest, LinesOfPython) {
  const std::string text =
      "Thread 0x00007f1 (most recent call first):\n"
      "  File \"/usr/lib/python3.11/threading.py\", line 324 in wait\n"
      "  File \"/usr/lib/python3.11/threading.py\", line 995 in _bootstrap\n\n"
      "Current thread 0x00007f2 (most recent call first):\n"
      "  File \"/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py\", line 2810 in all_reduce\n"
      "  File \"/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py\", line 81 in wrapper\n"
      "  File \"my \"train\", line 3.py\", line 12 in step\n"
      "  File \"train.py\", line 30 in <module>\n";
  EXPECT_EQ(
      short_python_stacks(text),
      "  Python, another thread:\n    wait at /usr/lib/python3.11/threading.py:324\n"
      "  Python, the current thread:\n"
      "    all_reduce at /venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:2810\n"
      "    step at my \"train\", line 3.py:12\n    <module> at train.py:30\n");
  std::string deep = "Current thread 0x1 (most recent call first):\n";
  for (int i = 0; i < 20; ++i) deep += "  File \"train.py\", line " + std::to_string(i) + " in f\n";
  EXPECT_NE(short_python_stacks(deep).find("    f at train.py:7\n    ... and 12 more\n"), std::string::npos);
  EXPECT_EQ(short_python_stacks("no stack\n  File \"cut"), "");
}

TEST(StackTextTest, EightFramesAThread) {
  std::string text = "TID 7:\n";
  for (int i = 0; i < 20; ++i) text += "#" + std::to_string(i) + "  0x1 f" + std::to_string(i) + "\n";
  const std::string out = short_stacks(text + "TID 8:\n#0 0x1 g\n");
  EXPECT_NE(out.find("    f7\n    ... and 12 more\n  TID 8:\n    g\n"), out.npos) << out;
  EXPECT_EQ(out.find("f8"), out.npos);
}

}  // namespace
}  // namespace lockstep::launcher
