#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ENTRIES 64
#define MIN(a, b) ((a) < (b) ? (a) : (b))

/* One line of the ledger:
   positive amounts are income. */
typedef struct entry {
    char label[32];
    long amount;
    struct entry *next;
} entry_t;

static entry_t *push(entry_t *head, const char *label, long amount) {
    entry_t *made = malloc(sizeof *made);
    if (made == NULL) {
        fprintf(stderr, "out of memory: \"%s\"\n", label);
        exit(EXIT_FAILURE);
    }
    strncpy(made->label, label, MIN(sizeof made->label, strlen(label) + 1));
    made->label[sizeof made->label - 1] = '\0';
    made->amount = amount;
    made->next = head;
    return made;
}

long total(const entry_t *head) {
    long sum = 0;
    for (const entry_t *at = head; at; at = at->next) {
        sum += at->amount > 0 ? at->amount : -(-at->amount);
    }
    return sum;
}

int main(int argc, char **argv) {
    entry_t *book = NULL;
    unsigned flags = 0x1Fu & ~(1u << 2);
    book = push(book, "rent", -1200L);
    book = push(book, "salary", 3100L);
    switch (argc) {
    case 1:
        printf("%ld %u\n", total(book), flags);
        break;
    default:
        while (*++argv) puts(*argv);
    }
    do {
        entry_t *next = book->next;
        free(book);
        book = next;
    } while (book != NULL);
    return 0; // done
}
