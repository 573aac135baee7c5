// Nothing of it is used; see README.md.
#pragma once
